-- Group commit inside nginx: the bodies of all requests that wait go to Redis in one RPUSH. For bench/peers.
-- One light thread of each nginx process has the connection; the requests sleep on a semaphore until it has the reply.
local semaphore = require "ngx.semaphore"

local function batch()
    return {parts = {""}, count = 0, done = semaphore.new()}
end

local state = package.loaded.group_commit -- of this process
if not state then
    state = {open = batch(), work = semaphore.new(), running = false}
    package.loaded.group_commit = state
end

local function push(redis, bodies)
    bodies.parts[1] = "*" .. bodies.count + 2 .. "\r\n$5\r\nRPUSH\r\n$7\r\ntesting\r\n"
    local line = redis:send(bodies.parts) and redis:receive()
    bodies.accepted = line and line:byte() == 58 -- a colon, which begins an integer in RESP
    bodies.done:post(bodies.count)
    return line
end

local function run() -- until an error, or for 100,000 batches: a thread keeps the memory of its cosocket calls
    local redis = ngx.socket.tcp()
    redis:settimeouts(1000, 5000, 5000)
    local alive = redis:connect("unix:REDIS_SOCKET")
    for _ = 1, 100000 do
        if not alive or ngx.worker.exiting() then break end
        if state.open.count > 0 or state.work:wait(1) then
            local bodies = state.open
            state.open = batch()
            if bodies.count > 0 then alive = push(redis, bodies) end
        end
    end
    redis:close()
    state.running = false
    if not alive then -- those that wait get 503, the next one tries again
        state.open.done:post(state.open.count)
        state.open = batch()
    elseif state.open.count > 0 then
        state.running = ngx.timer.at(0, run)
    end
end

ngx.req.read_body()
local body = ngx.req.get_body_data()
if not body then return ngx.exit(400) end -- none, or larger than client_body_buffer_size
local mine = state.open
local at = #mine.parts
mine.parts[at + 1], mine.parts[at + 2], mine.parts[at + 3] = "$" .. #body .. "\r\n", body, "\r\n"
mine.count = mine.count + 1
if mine.count == 1 then state.work:post() end
if not state.running then state.running = ngx.timer.at(0, run) end
if not mine.done:wait(10) or not mine.accepted then return ngx.exit(503) end
ngx.header.content_length = 16
ngx.print('{"message":"OK"}')
