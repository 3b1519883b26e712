"""How the rungs run under gunicorn: as a tutorial has it, but for the few settings without which nginx fails."""

backlog = 65535  # gunicorn's default, 2048, refuses bursts at once
worker_connections = 65535  # the default, 1000, would let the 1,001st wait
keepalive = 75  # longer than nginx keeps an idle connection; the default is 2 s
graceful_timeout = 2
worker_tmp_dir = "/dev/shm"
control_socket_disable = True
umask = 0o077
