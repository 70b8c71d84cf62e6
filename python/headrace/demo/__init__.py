"""The demo: real road-traffic measurements from producer to broker to PySpark to a picture.

The measurements are 30 hours of open data of the Dutch national road-traffic data portal (NDW), as published with the
Open Stream Processing Benchmark, whose topics ``ndwflow`` and ``ndwspeed`` and whose join per lane are followed here.
"""
