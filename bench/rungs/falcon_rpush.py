"""Falcon + RPUSH: one resource."""

import os

import falcon
import redis

r = redis.Redis(unix_socket_path=os.environ["INGEST_REDIS"])


class Gps:
    def on_post(self, req, resp):
        r.rpush("testing", req.bounded_stream.read())
        resp.media = {"message": "OK"}


app = falcon.App()
app.add_route("/gps", Gps())
