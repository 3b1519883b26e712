"""A gunicorn worker class that answers many plain requests with one commit.

`grammar` recognises a plain request, `connection` is one client, `loop` reads, calls the application and sends,
`answers` renders, `slow` hands everything else to gunicorn's own handler.

The contract between the lane and a WSGI callable. PEP 3333 holds; all of this is optional:

app.max_body: int        bytes. The lane reads a longer body only when the callable asks for it (in the slow lane)
app.tick()               the lane calls it about once a second, between two turns of the loop
environ["fastlane.head"] bytes: the request's head as received, its empty line included. Absent in the slow lane
a lazy answer            an iterable that commits and calls start_response only when iterated. The lane keeps
                         the answers of one turn and iterates them afterwards, so that the first commits for all
an answer's headers      the list object is rendered once and recognised by identity: make it at import

The callable must not wait for anything but its commit: the loop and all clients wait with it.
"""
