-- Operations -------------------------------------------------------------------------------------------------------

local operations = {}

local seen_level, seen_split = number('seen_level'), number('seen_split')
local seen_size = 2 ^ seen_level

-- Linear hashing: the buckets are split one at a time, in turn.
local function split_seen()
    local from, into = prefix .. 'seen:' .. whole(seen_split), prefix .. 'seen:' .. whole(seen_split + seen_size)
    local bits = 2 * seen_size
    local moved, known = {}, call('SMEMBERS', from)
    for _, key in ipairs(known) do
        if string.sub(key, -9) % bits ~= seen_split then moved[#moved + 1] = key end
    end
    if #moved > 0 then
        with_all('SREM', from, moved)
        with_all('SADD', into, moved)
    end
    seen_split = seen_split + 1
    if seen_split == seen_size then
        seen_level, seen_split = seen_level + 1, 0
        seen_size = 2 ^ seen_level
    end
    call('HSET', job_key, 'seen_level', whole(seen_level), 'seen_split', whole(seen_split))
end
-- The last nine digits decide: all of them are more than a number here holds.
local seen = prefix .. 'seen:'
local function bucket_of(digits)
    local bucket = digits % seen_size
    if bucket < seen_split then bucket = digits % (2 * seen_size) end
    return string.format('%s%d', seen, bucket)
end

-- Which of these keys, by their place, nobody knows. Writes nothing.
function operations.unknown()
    local found = {}
    local digits = given.digits
    for index, key in ipairs(given.keys) do
        if call('SISMEMBER', bucket_of(digits[index]), key) == 0 then found[#found + 1] = index end
    end
    return found
end

-- Takes the next links: there are three numbers for each run of them that has one site and one rank. The new ones are
-- gathered by rank and site: a push for each link is half of what a call costs.
local cursor, admitted, gathered = 1, 0, {}
local function admit(runs)
    local known = total('known')
    for index = 1, #runs, 3 do
        local by_site = gathered[runs[index + 1]]
        if not by_site then
            by_site = {}
            gathered[runs[index + 1]] = by_site
        end
        local fresh = by_site[runs[index]] or {}
        local before = #fresh
        for _ = 1, runs[index + 2] do
            local key = links[cursor]
            if call('SADD', bucket_of(string.sub(key, -9)), key) == 1 then
                fresh[#fresh + 1] = links[cursor + 1]
                known = known + 1
                if known > SEEN_LOAD * (seen_size + seen_split) then split_seen() end
            end
            cursor = cursor + 2
        end
        if #fresh > before then
            by_site[runs[index]] = fresh
            admitted = admitted + #fresh - before
            count('known', #fresh - before)
        end
    end
end
local function enqueue_gathered()
    for rank, by_site in pairs(gathered) do
        for name, fresh in pairs(by_site) do enqueue(given.names[name], rank, fresh) end
    end
end
local function pass_over(runs)
    for index = 3, #runs, 3 do cursor = cursor + 2 * runs[index] end
end
-- A server that was started again, or took over from another, is told by its run id.
local function notice_restart()
    local about = redis.pcall('INFO', 'server')
    local run = type(about) == 'string' and string.match(about, 'run_id:(%x+)')
    -- A user who may not ask must not be taken for a restart by those who may.
    if not run or job.run == run then return end
    if job.run then
        job.restarts, job.rest_until = whole(number('restarts') + 1), text(now + number('longest'))
        call('HSET', job_key, 'restarts', job.restarts, 'rest_until', job.rest_until)
    end
    job.run = run
    call('HSET', job_key, 'run', run)
end
-- A write that Redis refuses when its memory is full: once one has passed, Redis lets the others pass too.
local function needs_memory()
    call('HSET', job_key, 'now', text(now))
    notice_restart()
end
local function needs_no_memory()
    call('HDEL', job_key, '')
    notice_restart()
end

