"""The list between gateway and worker: the Redis contract and its three users, inlet, outlet and inspector."""
