"""gunicorn as in a tutorial, plus the few settings without which nginx would fail under this load."""

backlog = 65535  # the default, 2048, refuses bursts
worker_connections = 65535  # with the default, 1000, the 1,001st connection waits
keepalive = 75  # longer than nginx keeps an idle connection; the default is 2 s
graceful_timeout = 2
worker_tmp_dir = "/dev/shm"
control_socket_disable = True
umask = 0o077
