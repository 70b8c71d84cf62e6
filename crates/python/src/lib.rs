//! The native half of the Python package `headrace`: register, extract, convert, release the GIL. Nothing else.
#![allow(clippy::needless_pass_by_value, reason = "what Python calls takes its arguments by value")]
#![expect(
    unsafe_code,
    reason = "Arrow's C interface passes raw pointers; arrow.rs says why each use is sound"
)]

mod admin;
mod arrow;
mod broker;
mod chunks;
mod consumer;
mod errors;
mod exit;
mod lab;
mod logging;
mod options;
mod producer;
mod read;
mod share;
mod telling;
mod values;
mod wait;

use pyo3::prelude::*;

/// The module `headrace._native`.
#[pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    logging::start();
    module.add_class::<broker::Metadata>()?;
    module.add_class::<broker::Broker>()?;
    module.add_class::<producer::Producer>()?;
    module.add_class::<producer::Attempt>()?;
    module.add_class::<producer::Upload>()?;
    module.add_class::<producer::Results>()?;
    module.add_class::<consumer::Consumer>()?;
    module.add_class::<consumer::Awaiting>()?;
    module.add_class::<consumer::Taken>()?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<share::ShareConsumer>()?;
    module.add_class::<share::AwaitingShare>()?;
    module.add_class::<chunks::Chunks>()?;
    module.add_class::<consumer::Empty>()?;
    module.add_class::<admin::Admin>()?;
    module.add_class::<read::Read>()?;
    module.add_class::<read::RangeReader>()?;
    module.add_class::<read::Batches>()?;
    module.add_class::<options::TokenReply>()?;
    module.add_class::<logging::LogLines>()?;
    module.add_class::<values::AvroDecoder>()?;
    module.add_class::<values::AvroEncoder>()?;
    module.add_class::<values::JsonEncoder>()?;
    module.add_class::<values::ProtobufDecoder>()?;
    module.add_class::<values::ProtobufEncoder>()?;
    module.add_class::<values::JsonDecoder>()?;
    module.add_class::<values::TextDecoder>()?;
    module.add_function(wrap_pyfunction!(values::schema_ids, module)?)?;
    module.add_function(wrap_pyfunction!(values::schema_headers, module)?)?;
    module.add_function(wrap_pyfunction!(values::header_guids, module)?)?;
    module.add_function(wrap_pyfunction!(values::with_schema_header, module)?)?;
    module.add_function(wrap_pyfunction!(values::with_prefix, module)?)?;
    module.add_function(wrap_pyfunction!(values::check_avro, module)?)?;
    module.add_function(wrap_pyfunction!(values::protobuf_file, module)?)?;
    module.add_function(wrap_pyfunction!(values::protobuf_identity, module)?)?;
    module.add_function(wrap_pyfunction!(values::protobuf_incompatibilities, module)?)?;
    module.add_function(wrap_pyfunction!(values::avro_incompatibilities, module)?)?;
    module.add_class::<values::Column>()?;
    module.add_class::<lab::TimeCounts>()?;
    module.add_class::<lab::SeenRecords>()?;
    module.add_class::<lab::ValueMaker>()?;
    module.add_class::<lab::Deliveries>()?;
    module.add_function(wrap_pyfunction!(lab::count_records, module)?)?;
    module.add_function(wrap_pyfunction!(logging::log_targets, module)?)?;
    module.add_function(wrap_pyfunction!(logging::set_log_levels, module)?)?;
    module.add_function(wrap_pyfunction!(exit::fail_exit, module)?)?;
    module.add_function(wrap_pyfunction!(wait::call_after_stop, module)?)?;
    module.add_function(wrap_pyfunction!(wait::forget_calls, module)?)?;
    // Hooks run last in, first out: the package's own, which come later, still close their clients in peace.
    let stop_other_threads = wrap_pyfunction!(wait::stop_other_threads, module)?;
    module.py().import("atexit")?.call_method1("register", (stop_other_threads,))?;
    Ok(())
}
