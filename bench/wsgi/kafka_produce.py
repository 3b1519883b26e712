"""Kafka behind the simplest HTTP producer: one produce() for each request, which waits until the broker has it."""

import os

from confluent_kafka import Producer

producer = Producer({"bootstrap.servers": os.environ["KAFKA"], "acks": "all", "linger.ms": 0})


def app(environ, start_response):
    producer.produce("testing", environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
    if producer.flush(3):
        start_response("503 Service Unavailable", [("Content-Length", "0")])
        return []
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", "16")])
    return [b'{"message":"OK"}']
