-- RPUSH inside nginx, without a proxy hop: a cosocket from a pool, and RESP by hand. For bench/peers.
ngx.req.read_body()
local body = ngx.req.get_body_data()
if not body then return ngx.exit(400) end -- none, or larger than client_body_buffer_size
local redis = ngx.socket.tcp()
local line = redis:connect("unix:REDIS_SOCKET", {pool_size = POOL, backlog = 20000})
    and redis:send({"*3\r\n$5\r\nRPUSH\r\n$7\r\ntesting\r\n$", #body, "\r\n", body, "\r\n"})
    and redis:receive()
if not line or line:byte() ~= 58 then return ngx.exit(503) end -- 58: a colon, which begins an integer in RESP
redis:setkeepalive(60000)
ngx.header.content_length = 16
ngx.print('{"message":"OK"}')
