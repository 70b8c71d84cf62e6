//! The native half of the Python package headrace: register, extract, convert, release the GIL.
