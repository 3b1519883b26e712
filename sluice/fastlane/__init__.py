"""A gunicorn worker class that answers many plain requests with one commit.

`grammar` recognises a plain request, `connection` is the state of one client, `loop` reads, calls the application and
sends, `answers` renders answers, `slow` passes every other request to gunicorn's own handler.

The contract between the lane and a WSGI callable. PEP 3333 holds, except that the callable that start_response returns
(`write`) raises NotImplementedError in the fast lane. The rest is optional:

app.max_body: int         bytes. A longer body goes unread to the slow lane, where the application may reject it first.
                          Default and maximum: connection.MAX_BODY
app.tick()                called about once a second, between two turns of the loop
app.pause: float          seconds that a turn with more than loop.FEW requests waits for others, so that the commit has
                          more of them. Default: 0
app.shares_environ: bool  whether the application neither changes environ nor keeps it after its call. Then equal heads
                          share one dictionary, which is not copied for each request. Default: False
app.later(exception)      called once. Answers that are not ready may then raise this exception while they are iterated;
                          the lane iterates them again after grammar.LATER seconds, and meanwhile serves the other
                          clients. They have no close()
environ["fastlane.head"]  bytes: the request's head as received, including its empty line. Absent in the slow lane
a lazy answer             an iterable that commits and calls start_response only when it is iterated. The lane iterates
                          the answers of a turn after the last call of the application: the first one commits for all
an answer's headers       the list is rendered once and recognised by its identity: make it at import, do not change it.
                          Without Content-Length, the lane adds the length of each body
environ["fastlane.later"] the same exception for the answer to this GET, in the fast lane only

In the fast lane the application must wait for nothing but its commit: the loop and all clients wait with it.
"""
