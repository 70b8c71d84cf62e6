"""The demo: real road-traffic measurements from producer to broker to PySpark to a picture.

The measurements are 30 hours of open data of the Dutch national road-traffic data portal (NDW), as published with the
Open Stream Processing Benchmark, whose topics ``ndwflow`` and ``ndwspeed`` and whose join per lane are followed here.

``data`` owns the schemas, ``cluster`` registers them before anything is sent or read, ``replay`` writes Avro with them,
and ``pipeline`` takes its columns from the newest of each subject. A registry of the demo's own is that of a broker of
its own, whatever Kafka the records go to, and ends with the demo; one that was given and is not there, or refuses a
schema, ends the demo before Spark starts.
"""
