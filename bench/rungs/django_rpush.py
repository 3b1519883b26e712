"""Django + RPUSH: one view in one file, no middleware, no database. (siege needs a Content-Length.)"""

import os

import redis
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="not one")
r = redis.Redis(unix_socket_path=os.environ["INGEST_REDIS"])


def gps(request):
    r.rpush("testing", request.body)
    return HttpResponse('{"message":"OK"}', content_type="application/json", headers={"Content-Length": "16"})


urlpatterns = [path("gps", gps)]
app = get_wsgi_application()
