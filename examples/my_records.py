"""A stream of your own, the worker's half: INGEST_RECORDS=$PWD/examples/my_records.py"""

from sluice import Record, stream


class Order(Record):
    sku: str
    count: int = 1


STREAMS = {"orders": stream("orders", Order)}
