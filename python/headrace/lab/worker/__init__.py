"""A worker: a process with the producers, or with members of a group, of one client."""
