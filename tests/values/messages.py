"""Messages as Google's own library has them."""

from __future__ import annotations

import base64

from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory, timestamp_pb2, wrappers_pb2

from headrace import _native


def classes(text, name="order.proto", references=()):
    """The message classes that Google's library makes of a schema, by name."""
    pool = descriptor_pool.DescriptorPool()
    for well_known in (timestamp_pb2, duration_pb2, wrappers_pb2):
        pool.AddSerializedFile(well_known.DESCRIPTOR.serialized_pb)
    for other, other_text in [*references, (name, text)]:
        file, _ = _native.protobuf_file(other_text, list(references))
        described = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(file))
        described.name = other
        pool.Add(described)
    found = pool.FindFileByName(name).message_types_by_name
    return {name: message_factory.GetMessageClass(of) for name, of in found.items()}
