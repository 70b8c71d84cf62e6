"""Schema registries: a client of one (`client`), and the one that an embedded broker can have (`server`)."""

from headrace.registry.client import RegisteredSchema, SchemaReference, SchemaRegistry

__all__ = ["RegisteredSchema", "SchemaReference", "SchemaRegistry"]
