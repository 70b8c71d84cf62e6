"""The fixtures of tests and benches; a session's brokers serve both."""

pytest_plugins = ["tests.kafka.fixtures", "tests.rdma.fixtures"]
