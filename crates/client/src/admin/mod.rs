//! Administration: topics, offsets, groups, settings.
