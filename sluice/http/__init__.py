"""HTTP as gateway and reader speak it: routes, replies, requests, endpoints. It runs on PyPy."""
