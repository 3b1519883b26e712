-- GET or ZREVRANGE inside nginx, without a proxy hop: a cosocket from a pool, and RESP by hand. For bench/reads.
local path, key, command = ngx.var.uri, ngx.var.arg_device or ngx.var.arg_poll, nil
if path == "/gps/trail" then
    local last = tostring(ngx.var.arg_limit - 1)
    key = "feed:" .. key
    command = {"*4\r\n$9\r\nZREVRANGE\r\n$", #key, "\r\n", key, "\r\n$1\r\n0\r\n$", #last, "\r\n", last, "\r\n"}
else
    key = (path == "/gps/latest" and "latest:" or "tally:") .. key
    command = {"*2\r\n$3\r\nGET\r\n$", #key, "\r\n", key, "\r\n"}
end
local redis = ngx.socket.tcp()
local line = redis:connect("unix:REDIS_SOCKET", {pool_size = POOL, backlog = 20000}) and redis:send(command)
    and redis:receive()
if not line or line:byte() == 45 then return ngx.exit(503) end -- 45: a minus, which begins an error in RESP

local function value(head)
    local size = tonumber(head:sub(2))
    return size >= 0 and redis:receive(size + 2):sub(1, size) or nil
end

local body
if line:byte() == 42 then -- an asterisk: an array
    local items = {}
    for n = 1, tonumber(line:sub(2)) do items[n] = value(redis:receive()) end
    body = #items > 0 and "[" .. table.concat(items, ",") .. "]" or nil
else
    body = value(line)
end
redis:setkeepalive(60000)
if not body then return ngx.exit(404) end
ngx.header.content_length = #body
ngx.print(body)
