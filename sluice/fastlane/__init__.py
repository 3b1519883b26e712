"""A gunicorn worker class that answers many plain requests with one commit.

`grammar` recognises a plain request, `connection` is the state of one client, `loop` reads, calls the application and
sends, `answers` renders answers, `slow` passes every other request to gunicorn's own handler. `interface` is what the
lane and an application may know of each other.
"""
