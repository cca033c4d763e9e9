-- Limits of all gateways. All are checked, then all are charged: a script runs alone.
--
-- reserve: KEYS the mark that quotas are seeded, the lease, then one per limit
--   ARGV: "reserve", window in ms, lease id, tokens, at most, at least, milliseconds that a place is held without a heartbeat,
--         then for each limit: kind (r t p q), amount, shadow (0 1), when a quota ends (ms since the epoch)
--   gives: status (0 refused, 1 granted, 2 near, 3 not seeded), then for each limit:
--         used before, ms until nothing is used, ms until it fits (-1: never), 0 fits 1 does not 2 near
-- read: as reserve, and charges nothing
-- settle: KEYS the lease, then one per limit; ARGV: "settle", window, lease id, used, then for each limit its kind
-- beat: KEYS places; ARGV: "beat", window, milliseconds to hold, then for each place the lease's id
-- seed: KEYS quotas, then the mark; ARGV: "seed", window, then for each quota the least that it holds and when it ends

local WINDOW = tonumber(ARGV[2])
-- No request lasts so long; what a dead gateway left goes then.
local LEASE = 86400000
local clock = redis.call("TIME")
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function expire(key)
    -- Drops what has left the window; what a request used stands under its id, the sum under "sum".
    local gone = redis.call("ZRANGEBYSCORE", key, "-inf", now - WINDOW)
    if #gone == 0 then return end
    local freed = 0
    for _, id in ipairs(gone) do
        freed = freed + (tonumber(redis.call("HGET", key .. ":t", id)) or 0)
        redis.call("HDEL", key .. ":t", id)
    end
    redis.call("ZREMRANGEBYSCORE", key, "-inf", now - WINDOW)
    redis.call("HINCRBY", key .. ":t", "sum", string.format("%.0f", -freed))
end

local function used(kind, key)
    if kind == "q" then return tonumber(redis.call("GET", key)) or 0 end
    if kind == "p" then
        redis.call("ZREMRANGEBYSCORE", key, "-inf", now)
        return redis.call("ZCARD", key)
    end
    if kind == "t" then
        expire(key)
        return tonumber(redis.call("HGET", key .. ":t", "sum")) or 0
    end
    redis.call("ZREMRANGEBYSCORE", key, "-inf", now - WINDOW)
    return redis.call("ZCARD", key)
end

local function newest(key)
    local last = redis.call("ZREVRANGE", key, 0, 0, "WITHSCORES")
    if #last == 0 then return 0 end
    return last[2] + WINDOW - now
end

local function reset(kind, key, ends, taken)
    if kind == "q" then return ends - now end
    if kind == "p" then
        if taken > 0 then return 1000 end
        return 0
    end
    return newest(key)
end

local function fits_in(kind, key, ends, taken, need, amount)
    -- The earliest moment at which `need` more stay within `amount`, if nothing else comes.
    if kind == "q" then return ends - now end
    if kind == "p" then return 1000 end
    local excess, last = taken + need - amount, nil
    for _, id in ipairs(redis.call("ZRANGE", key, 0, -1)) do
        if excess <= 0 then break end
        last = id
        if kind == "r" then
            excess = excess - 1
        else
            excess = excess - (tonumber(redis.call("HGET", key .. ":t", id)) or 0)
        end
    end
    return last and redis.call("ZSCORE", key, last) + WINDOW - now or 0
end

local function charge(kind, key, id, tokens, ends, hold)
    if kind == "q" then
        redis.call("INCRBY", key, string.format("%.0f", tokens))
        redis.call("PEXPIREAT", key, ends)
    elseif kind == "p" then
        redis.call("ZADD", key, now + hold, id)
        redis.call("PEXPIRE", key, hold)
    else
        redis.call("ZADD", key, now, id)
        redis.call("PEXPIRE", key, WINDOW)
        if kind == "t" then
            redis.call("HSET", key .. ":t", id, string.format("%.0f", tokens))
            redis.call("HINCRBY", key .. ":t", "sum", string.format("%.0f", tokens))
            redis.call("PEXPIRE", key .. ":t", WINDOW)
        end
    end
end

local function reserve()
    if redis.call("EXISTS", KEYS[1]) == 0 then return {3} end
    local id, tokens, most, least = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
    local hold = tonumber(ARGV[7])
    -- The longest waits for what does not fit, and for what might not.
    local certain, unsure, answer = -1, -1, {0}
    for i = 3, #KEYS do
        local at = 8 + (i - 3) * 4
        local kind, amount = ARGV[at], tonumber(ARGV[at + 1])
        local shadow, ends = ARGV[at + 2] == "1", tonumber(ARGV[at + 3])
        local counts_tokens = kind == "t" or kind == "q"
        local taken = used(kind, KEYS[i])
        local verdict, wait = 0, 0
        local need = counts_tokens and (shadow and tokens or most) or 1
        if taken + need > amount then
            verdict = 1
            if counts_tokens and not shadow and taken + least <= amount then verdict = 2 end
            if counts_tokens and least > amount then
                wait = -1
            else
                local wanted = counts_tokens and math.min(most, amount) or 1
                wait = fits_in(kind, KEYS[i], ends, taken, wanted, amount)
            end
            local holds = wait < 0 and math.huge or wait
            if not shadow and verdict == 1 then certain = math.max(certain, holds) end
            if verdict == 2 then unsure = math.max(unsure, holds) end
        end
        answer[#answer + 1] = taken
        answer[#answer + 1] = math.ceil(reset(kind, KEYS[i], ends, taken))
        answer[#answer + 1] = math.ceil(wait)
        answer[#answer + 1] = verdict
    end
    if ARGV[1] == "read" then return answer end
    if unsure > certain then answer[1] = 2 end
    if unsure >= 0 or certain >= 0 then return answer end
    redis.call("SET", KEYS[2], string.format("%.0f", tokens), "PX", LEASE)
    for i = 3, #KEYS do
        local at = 8 + (i - 3) * 4
        charge(ARGV[at], KEYS[i], id, tokens, tonumber(ARGV[at + 3]), hold)
    end
    answer[1] = 1
    return answer
end

local function settle()
    -- Once: a call whose answer was lost is made again.
    local reserved = redis.call("GETDEL", KEYS[1])
    if not reserved then return {0} end
    local id, more = ARGV[3], string.format("%.0f", ARGV[4] - reserved)
    for i = 2, #KEYS do
        local key, kind = KEYS[i], ARGV[3 + i]
        if kind == "p" then
            redis.call("ZREM", key, id)
        elseif kind == "q" then
            -- Only while the period lasts: its key is gone after.
            if redis.call("EXISTS", key) == 1 then redis.call("INCRBY", key, more) end
        elseif kind == "t" and redis.call("HEXISTS", key .. ":t", id) == 1 then
            redis.call("HINCRBY", key .. ":t", id, more)
            redis.call("HINCRBY", key .. ":t", "sum", more)
        end
    end
    return {1}
end

local function beat()
    local hold = tonumber(ARGV[3])
    for i, key in ipairs(KEYS) do
        redis.call("ZADD", key, "XX", now + hold, ARGV[3 + i])
        redis.call("PEXPIRE", key, hold)
    end
    return {1}
end

local function seed()
    for i = 1, #KEYS - 1 do
        local least, ends = tonumber(ARGV[2 * i + 1]), tonumber(ARGV[2 * i + 2])
        if ends > now and (tonumber(redis.call("GET", KEYS[i])) or 0) < least then
            redis.call("SET", KEYS[i], string.format("%.0f", least))
            redis.call("PEXPIREAT", KEYS[i], ends)
        end
    end
    redis.call("SET", KEYS[#KEYS], 1)
    return {1}
end

if ARGV[1] == "settle" then return settle() end
if ARGV[1] == "beat" then return beat() end
if ARGV[1] == "seed" then return seed() end
return reserve()
