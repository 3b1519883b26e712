"""Django + Celery: the view queues a task in Redis, and a Celery worker runs it. The task does nothing."""

import os

from celery import Celery
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="not one")
celery = Celery("rung", broker="redis+socket://" + os.environ["INGEST_REDIS"])
celery.conf.task_default_queue = os.environ["RUNG_QUEUE"]


@celery.task(ignore_result=True)
def store(data):
    pass


def gps(request):
    store.delay(request.body.decode())
    return HttpResponse('{"message":"OK"}', content_type="application/json", headers={"Content-Length": "16"})


urlpatterns = [path("gps", gps)]
app = get_wsgi_application()
