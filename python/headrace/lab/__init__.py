"""The workload lab: a workload in YAML, run against any Kafka with any of several clients, measured and reported.

`headrace lab` is its command; docs/lab.md tells of the files it reads and writes. It needs ``pip install
'.[lab]'`` in a checkout: nothing else of headrace imports this package.
"""
