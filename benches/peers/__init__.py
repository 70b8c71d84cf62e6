"""The peers and the limits, each a runner that reports a sample."""
