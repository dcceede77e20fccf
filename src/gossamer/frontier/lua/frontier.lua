-- The frontier of one shard of a job. Every call is one run of this script, and so atomic.
--
-- KEYS[1] is the job's record; all other keys share its hash tag.   ARGV: the operation, its arguments in msgpack, and
-- in msgpack too a list with the links, two strings each: the key in decimal, and the entry.
--
--   job            hash    state, counters, the last token, the last time
--   seen:N         sets    of the integers of known keys; linear hashing keeps each below 512, where Redis packs them
--   site:S         hash    delay, hold, closed, lanes, and for lane i: t(oken) e(xpires) n(ext) w(orker) x(suspect)
--                          l(ast token) r(estart after which its clock is known)
--   robots:S       hash    origin -> rules        memo:S  hash  name -> value
--   ranks:S        zset    the ranks of queue:S:R, lists of entries in their order; none is empty
--   front:S        list    entries that go first  suspects:S  list  entries that go alone
--   later:S        zset    entry -> when it is due
--   batch:S:I      hash    key -> place in the order (4 characters) and entry, of the lane's lease
--   held           hash    token -> lane, site
--   ready:REGION   zset    "lane site" -> when the lane is ready; a leased one when its lease has ended. Every lane of
--                          a site on which something waits is there.
--   lapses         hash    key -> lost deliveries
--
-- An entry is a key (8 bytes) and a msgpack array; what is in it is the client's but for the fields named here.
local TRIES, STATE, AGAIN = 6, 8, 9
local DEFAULTS = { '', 0, '', 0, 0, 0, '', '', '' }
local FORMAT = '1'
-- Twice as many in a bucket, which it may have before its turn to be split comes, stay well below the 512 of Redis.
local SEEN_LOAD = 184
local MANY = 1000

local job_key = KEYS[1]
local prefix = string.sub(job_key, 1, -4)
local call = redis.call
local operation, given = ARGV[1], cmsgpack.unpack(ARGV[2])
local links = ARGV[3] and cmsgpack.unpack(ARGV[3]) or {}

local FIELDS = {
    'format', 'state', 'strategy', 'delay', 'robots', 'lanes', 'budget', 'max_deliveries', 'now', 'skew', 'clock',
    'token', 'news',
    'seen_level', 'seen_split', 'known', 'sites', 'queued', 'delayed', 'leased', 'stored', 'done', 'failed', 'skipped',
    'parked', 'stale', 'revisits', 'lapsed', 'restarts', 'rest_until', 'longest',
}
local job = {}
for index, value in ipairs(call('HMGET', job_key, unpack(FIELDS))) do job[FIELDS[index]] = value or nil end
if not job.format then return redis.error_reply('JOBMISSING there is no such job') end
if job.format ~= FORMAT then return redis.error_reply('OTHERFORMAT ' .. job.format) end

local counted = {}
local function number(name) return tonumber(job[name] or '0') end
local function count(name, by)
    if by ~= 0 then counted[name] = (counted[name] or 0) + by end
end
local function total(name) return number(name) + (counted[name] or 0) end

-- The store's clock, or that of a test. Within a job it never steps back: where it does, it goes on from where it was.
local now, skew = tonumber(job.clock or ''), number('skew')
if not now then
    local time = call('TIME')
    now = tonumber(time[1]) + tonumber(time[2]) / 1000000
end
skew = math.max(skew, number('now') - now)
now = math.floor((now + skew) * 1000000 + 0.5) / 1000000
local SOON = now + 0.00001

local function text(value) return string.format('%.6f', value) end
local function whole(value) return string.format('%.0f', value) end
local function key_of(entry) return string.sub(entry, 1, 8) end
local function place(name, site) return prefix .. name .. ':' .. site end
local function member(site, lane) return lane .. ' ' .. site end
local function damaged(key, what) error({ err = 'DAMAGED ' .. key .. ' ' .. what }) end
local function with_all(command, key, values)
    for first = 1, #values, MANY do call(command, key, unpack(values, first, math.min(first + MANY - 1, #values))) end
end

-- None of an entry that is not ours: it goes its way to a client, which has it parked.
local function fields_of(entry)
    local is_whole, fields = pcall(cmsgpack.unpack, string.sub(entry, 9))
    if not is_whole or type(fields) ~= 'table' then return {} end
    for index = #fields + 1, #DEFAULTS do fields[index] = DEFAULTS[index] end
    return fields
end
local function with_fields(entry, fields) return key_of(entry) .. cmsgpack.pack(fields) end

-- Sites ------------------------------------------------------------------------------------------------------------

local sites = {}
local function load_site(name)
    local site = sites[name]
    if site then return site end
    site = { name = name, changed = {} }
    local flat = call('HGETALL', place('site', name))
    for i = 1, #flat, 2 do site[flat[i]] = flat[i + 1] end
    sites[name] = site
    return site
end
local function must_be_there(site)
    if not site.allowed then damaged(place('site', site.name), 'is gone') end
    return site
end
local function set(site, field, value)
    site[field] = value
    site.changed[field] = value
end
local function num(site, field) return tonumber(site[field] or '0') end

local function lanes_of(site) return math.max(1, num(site, 'lanes')) end
local function delay_of(site) return math.max(tonumber(site.own or job.delay), num(site, 'asked')) end
local function lane_delay(site) return delay_of(site) * lanes_of(site) end

local function has_queued(site)
    return call('EXISTS', place('ranks', site.name), place('front', site.name), place('suspects', site.name)) > 0
end
local function ready_at(site, lane)
    if num(site, 't' .. lane) ~= 0 then return num(site, 'e' .. lane) + lane_delay(site) end
    local allowed = math.max(num(site, 'n' .. lane), num(site, 'hold'))
    if has_queued(site) then return allowed end
    if num(site, 'later') > 0 then
        local first = call('ZRANGE', place('later', site.name), 0, 0, 'WITHSCORES')
        if first[2] then return math.max(allowed, tonumber(first[2])) end
    end
    return nil
end
local woken = {}
local function wake(site) woken[site.name] = site end
local function enter_ready()
    for name, site in pairs(woken) do
        local set_name = prefix .. 'ready:' .. (site.region or '')
        for lane = 0, lanes_of(site) - 1 do
            local at = ready_at(site, lane)
            if at then
                call('ZADD', set_name, text(at), member(name, lane))
            else
                call('ZREM', set_name, member(name, lane))
            end
        end
    end
end
local function open_lanes(site)
    local wanted, have = num(site, 'allowed'), lanes_of(site)
    for lane = have, wanted - 1 do
        set(site, 'n' .. lane, text(now + delay_of(site) * (1 + lane)))
    end
    if wanted > have then set(site, 'lanes', wanted) end
end
local function new_site(name)
    local site = load_site(name)
    if not site.allowed then
        local own = given.own and given.own[name] or {}
        set(site, 'allowed', own.lanes or number('lanes'))
        if own.delay then set(site, 'own', text(own.delay)) end
        set(site, 'lanes', 1)
        set(site, 'n0', text(now))
        local budget = own.budget or job.budget
        if budget and budget ~= '' then set(site, 'budget', budget) end
        if job.robots ~= '1' then open_lanes(site) end
        count('sites', 1)
    end
    return site
end
local function room_on(site)
    if not site.budget then return 9007199254740992 end
    return num(site, 'budget') - num(site, 'stored') - num(site, 'leased')
end
local function closed_counter(reason)
    return reason == 'budget' and 'skipped' or 'failed'
end

-- Queues -----------------------------------------------------------------------------------------------------------

local function lapses_of(entry) return tonumber(call('HGET', prefix .. 'lapses', key_of(entry)) or '0') end

local function put_back(site, entry)
    if total('lapsed') > 0 and lapses_of(entry) >= 2 then
        call('RPUSH', place('suspects', site.name), entry)
    else
        call('LPUSH', place('front', site.name), entry)
    end
    count('queued', 1)
    wake(site)
end
-- Entries that nobody knew, all of one rank. Where others wait already, the site need not even be looked at.
local function enqueue(name, rank, entries)
    local list = rank == '' and place('front', name) or place('queue', name) .. ':' .. rank
    local added = #entries
    local size = 0
    for first = 1, added, MANY do
        local last = math.min(first + MANY - 1, added)
        size = call(rank == '' and 'LPUSH' or 'RPUSH', list, unpack(entries, first, last))
    end
    if size == added then
        local site = new_site(name)
        if site.closed then
            call('DEL', list)
            count(closed_counter(site.closed), added)
            return
        end
        if rank ~= '' then call('ZADD', place('ranks', name), rank, rank) end
        wake(site)
    end
    count('queued', added)
end
local function push_later(site, entry, due)
    call('ZADD', place('later', site.name), text(due), entry)
    set(site, 'later', num(site, 'later') + 1)
    count('delayed', 1)
    wake(site)
end
local function come_due(site)
    if num(site, 'later') == 0 then return end
    local due = call('ZRANGEBYSCORE', place('later', site.name), '-inf', text(now), 'LIMIT', 0, 512)
    -- Each goes to the head, so the last goes first.
    for index = #due, 1, -1 do
        local entry = due[index]
        call('ZREM', place('later', site.name), entry)
        set(site, 'later', num(site, 'later') - 1)
        count('delayed', -1)
        local fields = fields_of(entry)
        local again = fields[AGAIN]
        if again and again ~= '' then
            count('revisits', -1)
            count(again, -1)
            fields[AGAIN] = ''
            entry = with_fields(entry, fields)
        end
        put_back(site, entry)
    end
end
local function pick_any(list)
    local size = call('LLEN', list)
    local pick = size > 1 and math.random(0, size - 1) or 0
    local entry, first = call('LINDEX', list, pick), call('LPOP', list)
    if pick > 0 then call('LSET', list, pick - 1, first) end
    return { entry }
end
local function pop(site, wanted)
    local taken = call('LPOP', place('front', site.name), wanted) or {}
    while #taken < wanted do
        local rank = call('ZRANGE', place('ranks', site.name), 0, 0)[1]
        if not rank then break end
        local list, part = place('queue', site.name) .. ':' .. rank, nil
        if job.strategy == 'random' then
            part = pick_any(list)
        else
            part = call(job.strategy == 'dfs' and 'RPOP' or 'LPOP', list, wanted - #taken) or {}
        end
        if #part == 0 then damaged(list, 'is gone') end
        for _, entry in ipairs(part) do taken[#taken + 1] = entry end
        if call('EXISTS', list) == 0 then call('ZREM', place('ranks', site.name), rank) end
    end
    return taken
end
local function take(site, wanted, may_suspect)
    come_due(site)
    local taken, alone = nil, false
    if may_suspect and total('lapsed') > 0 then
        taken = call('LPOP', place('suspects', site.name), 1)
        alone = taken and #taken > 0
    end
    if not alone then taken = pop(site, wanted) end
    count('queued', -#taken)
    return taken, alone
end
local function close(site, reason)
    local name = site.name
    local dropped = call('LLEN', place('front', name)) + call('LLEN', place('suspects', name))
    for _, rank in ipairs(call('ZRANGE', place('ranks', name), 0, -1)) do
        local list = place('queue', name) .. ':' .. rank
        dropped = dropped + call('LLEN', list)
        call('DEL', list)
    end
    local revisits = 0
    for _, entry in ipairs(call('ZRANGE', place('later', name), 0, -1)) do
        if (fields_of(entry)[AGAIN] or '') ~= '' then revisits = revisits + 1 end
    end
    call('DEL', place('ranks', name), place('front', name), place('suspects', name), place('later', name))
    count('queued', -dropped)
    count('delayed', -num(site, 'later'))
    count('revisits', -revisits)
    dropped = dropped + num(site, 'later') - revisits
    set(site, 'later', 0)
    set(site, 'closed', reason)
    count(closed_counter(reason), dropped)
    wake(site)
end

-- Leases -----------------------------------------------------------------------------------------------------------

local function lane_and_site(found)
    local space = string.find(found, ' ', 1, true)
    return string.sub(found, 1, space - 1), must_be_there(load_site(string.sub(found, space + 1)))
end
local held = {}
local function held_lane(token)
    local found = held[token]
    if found == nil then
        local where = call('HGET', prefix .. 'held', token)
        found = where and { lane_and_site(where) }
        held[token] = found
    end
    if found then return found[2], found[1] end
    return nil
end
local function batch_of(site, lane) return place('batch', site.name) .. ':' .. lane end

local function free(site, lane, from)
    local batch = batch_of(site, lane)
    local left = call('HVALS', batch)
    if #left > 0 then
        call('DEL', batch)
        set(site, 'leased', num(site, 'leased') - #left)
        count('leased', -#left)
        -- Each goes to the head, so the last goes first.
        table.sort(left, function(a, b) return a > b end)
        for _, kept in ipairs(left) do put_back(site, string.sub(kept, 5)) end
    end
    local token = site['t' .. lane]
    call('HDEL', prefix .. 'held', token)
    held[token] = false
    set(site, 't' .. lane, '0')
    set(site, 'x' .. lane, 0)
    if site.rules or job.robots ~= '1' then open_lanes(site) end
    set(site, 'n' .. lane, text(math.max(num(site, 'n' .. lane), from + lane_delay(site))))
    if site.closed then close(site, site.closed) end
    wake(site)
    count('news', 1)
end
local function lapse(site, lane, from, blamed)
    local batch = batch_of(site, lane)
    if call('EXISTS', batch) == 0 then damaged(batch, 'is gone') end
    for _, key in ipairs(blamed or call('HKEYS', batch)) do
        if call('HEXISTS', batch, key) == 1 then
            local lapses = call('HINCRBY', prefix .. 'lapses', key, 1)
            if lapses == 1 then count('lapsed', 1) end
            if lapses >= number('max_deliveries') then
                call('HDEL', batch, key)
                call('HDEL', prefix .. 'lapses', key)
                count('lapsed', -1)
                set(site, 'leased', num(site, 'leased') - 1)
                count('leased', -1)
                count('parked', 1)
            end
        end
    end
    free(site, lane, from - lane_delay(site))
end
local function max_pages() return tonumber(given.max_pages or job.max_pages or '') end
local function room()
    local limit = max_pages()
    return limit and limit - total('stored') - total('leased') or 9007199254740992
end
local function is_over()
    if total('leased') > 0 then return false end
    local limit = max_pages()
    if limit and total('stored') >= limit then return true end
    if total('queued') + total('delayed') > total('revisits') then return false end
    if total('revisits') > 0 then
        local first = call('ZRANGE', prefix .. 'ready:' .. (given.region or ''), 0, 0, 'WITHSCORES')
        return not first[2] or tonumber(first[2]) > now
    end
    return true
end
local function state()
    if job.state == 'running' and is_over() then return 'finished' end
    return job.state
end

-- A store that was started again may have lost its last second, and in it a lease: its holder goes on with that site
-- until the lease would have ended. So a lane waits for that, unless its clock is known to be of after the start.
local function must_rest(site, lane)
    local rest = number('rest_until') + lane_delay(site)
    if rest <= now or site['r' .. lane] == job.restarts then return false end
    set(site, 'r' .. lane, job.restarts)
    set(site, 'n' .. lane, text(math.max(num(site, 'n' .. lane), rest)))
    wake(site)
    return true
end
local function lease_lane(site, lane, wanted, may_suspect)
    if num(site, 't' .. lane) ~= 0 then lapse(site, lane, now) end
    if room_on(site) <= 0 then
        if num(site, 'leased') == 0 and not site.closed then
            close(site, 'budget')
            count('news', 1)
        end
        return nil
    end
    if must_rest(site, lane) then return nil end
    local at = ready_at(site, lane)
    if not at or at > SOON then
        wake(site)
        return nil
    end
    local delay = lane_delay(site)
    local most = math.min(wanted, room_on(site))
    if delay > 0 then most = math.min(most, math.max(1, math.floor(given.seconds / 2 / delay))) end
    local taken, alone = take(site, most, may_suspect)
    if #taken == 0 then
        wake(site)
        return nil
    end
    local token = whole(math.max(total('token') + 1, math.floor(now * 1000000)))
    job.token, counted.token = token, nil
    local entries, fields, size, inside = {}, {}, 0, {}
    for _, entry in ipairs(taken) do
        local key = key_of(entry)
        if not inside[key] then
            inside[key] = true
            size = size + 1
            entries[size] = entry
            fields[2 * size - 1] = key
            fields[2 * size] = string.format('%04x', size) .. entry
        end
    end
    with_all('HSET', batch_of(site, lane), fields)
    count('parked', #taken - size)
    call('HSET', prefix .. 'held', token, member(site.name, lane))
    set(site, 't' .. lane, token)
    set(site, 'e' .. lane, text(now + given.seconds))
    set(site, 'w' .. lane, given.worker)
    set(site, 'x' .. lane, alone and 1 or 0)
    set(site, 'leased', num(site, 'leased') + size)
    count('leased', size)
    wake(site)
    return {
        site.name, tonumber(lane), token, entries, text(delay), lanes_of(site),
        call('HGETALL', place('robots', site.name)), call('HGETALL', place('memo', site.name)), alone and 1 or 0,
    }
end
local function has_suspect(worker)
    if number('lapsed') == 0 then return false end
    for _, found in ipairs(call('HVALS', prefix .. 'held')) do
        local lane, site = lane_and_site(found)
        if tostring(site['x' .. lane]) == '1' and site['w' .. lane] == worker and ready_at(site, lane) > now then return true end
    end
    return false
end

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
    return seen .. bucket
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

-- Takes the next links: there are three numbers for each run of them that has one site and one rank.
local cursor, admitted = 1, 0
local function admit(runs)
    local added, known = 0, total('known')
    for index = 1, #runs, 3 do
        local name, rank, fresh = given.names[runs[index]], runs[index + 1], {}
        for _ = 1, runs[index + 2] do
            local key = links[cursor]
            if call('SADD', bucket_of(tonumber(string.sub(key, -9))), key) == 1 then
                fresh[#fresh + 1] = links[cursor + 1]
                known = known + 1
                if known > SEEN_LOAD * (seen_size + seen_split) then split_seen() end
            end
            cursor = cursor + 2
        end
        if #fresh > 0 then
            enqueue(name, rank, fresh)
            added = added + #fresh
        end
    end
    count('known', added)
    admitted = admitted + added
end
local function pass_over(runs)
    for index = 3, #runs, 3 do cursor = cursor + 2 * runs[index] end
end
-- A write that Redis refuses when its memory is full: once one has passed, Redis lets the others pass too.
local function needs_memory() call('HSET', job_key, 'now', text(now)) end
local function needs_no_memory() call('HDEL', job_key, '') end

function operations.add()
    needs_memory()
    admit(given.runs)
    return admitted
end

function operations.lease()
    if job.state ~= 'running' or is_over() then return { {}, false, state(), total('news') } end
    needs_memory()
    if given.seconds > number('longest') then call('HSET', job_key, 'longest', given.seconds) end
    if room() <= 0 then
        for _, token in ipairs(call('HKEYS', prefix .. 'held')) do
            local site, lane = held_lane(token)
            if ready_at(site, lane) <= now then lapse(site, lane, now) end
        end
    end
    local leases, left, busy = {}, room(), has_suspect(given.worker)
    local ready = prefix .. 'ready:' .. given.region
    local passed, refused = {}, {}
    while #leases < given.limit and left > 0 do
        local due = call('ZRANGEBYSCORE', ready, '-inf', text(now), 'LIMIT', 0, given.limit + 16)
        local fresh = 0
        for _, found in ipairs(due) do
            if not passed[found] then
                passed[found] = true
                fresh = fresh + 1
                local lane, site = lane_and_site(found)
                local lease = lease_lane(site, lane, math.min(given.batch, left), not busy)
                if lease then
                    leases[#leases + 1] = lease
                    left = left - #lease[4]
                    busy = busy or lease[9] == 1
                else
                    refused[found] = true
                end
                if #leases >= given.limit or left <= 0 then break end
            end
        end
        enter_ready()
        woken = {}
        if fresh == 0 then break end
    end
    local wait = false
    if left > 0 then
        -- What was passed over is not for this worker: it must not ask for it again and again.
        local refusals = 0
        for _ in pairs(refused) do refusals = refusals + 1 end
        local first = call('ZRANGE', ready, 0, refusals, 'WITHSCORES')
        for index = 1, #first, 2 do
            if not refused[first[index]] or tonumber(first[index + 1]) > now then
                wait = tonumber(first[index + 1]) - now
                break
            end
        end
    else
        for _, token in ipairs(call('HKEYS', prefix .. 'held')) do
            local site, lane = held_lane(token)
            local ends = ready_at(site, lane) - now
            if not wait or ends < wait then wait = ends end
        end
    end
    if #leases == 0 and given.region == '' and call('EXISTS', ready, prefix .. 'held') == 0 and not is_over() then
        damaged(ready, 'is gone: ' .. whole(total('queued') + total('delayed')) .. ' requests wait')
    end
    if wait then wait = text(math.max(0, wait)) end
    return { leases, wait, state(), total('news') }
end

function operations.extend()
    needs_no_memory()
    local ours = {}
    for _, token in ipairs(given.tokens) do
        local site, lane = held_lane(token)
        if site and num(site, 'e' .. lane) > now then
            set(site, 'e' .. lane, text(now + given.seconds))
            wake(site)
            ours[#ours + 1] = token
        end
    end
    return ours
end

local function apply_note(note)
    local site = held_lane(note[1])
    if not site then return end
    local hold, delay, close_reason = note[2], note[3], note[6]
    if hold ~= '' then
        set(site, 'hold', text(math.max(num(site, 'hold'), now + tonumber(hold))))
        call('ZADD', prefix .. 'holds', site.hold, site.name)
        call('ZREMRANGEBYSCORE', prefix .. 'holds', '-inf', text(now))
    end
    if delay ~= '' then set(site, 'asked', delay) end
    if #note[4] > 0 then
        call('HSET', place('robots', site.name), unpack(note[4]))
        set(site, 'rules', 1)
    end
    if #note[5] > 0 then call('HSET', place('memo', site.name), unpack(note[5])) end
    if close_reason ~= '' then close(site, close_reason) end
    wake(site)
end

local function settle(site, entry, status, again_in, visit)
    if status ~= 'retry' then
        count(status, 1)
        if status == 'done' or status == 'failed' then
            count('stored', 1)
            set(site, 'stored', num(site, 'stored') + 1)
        end
    end
    if again_in == '' then return end
    if site.closed then
        if status == 'retry' then count(closed_counter(site.closed), 1) end
        return
    end
    local fields = fields_of(entry)
    fields[TRIES] = status == 'retry' and fields[TRIES] + 1 or 0
    if status ~= 'retry' or visit ~= '' then fields[STATE] = visit end
    fields[AGAIN] = status == 'retry' and '' or status
    if status ~= 'retry' then count('revisits', 1) end
    push_later(site, with_fields(entry, fields), now + tonumber(again_in))
end
local function finish_lane(site, lane)
    if site['t' .. lane] == '0' or call('EXISTS', batch_of(site, lane)) == 1 then return end
    set(site, 'l' .. lane, site['t' .. lane])
    set(site, 'r' .. lane, job.restarts)
    free(site, lane, now)
    if room_on(site) <= 0 and num(site, 'leased') == 0 and not site.closed
        and (has_queued(site) or num(site, 'later') > 0) then
        close(site, 'budget')
    end
end

function operations.complete()
    local accepted, stale, repeated, touched = 0, 0, 0, {}
    if #links > 0 then needs_memory() else needs_no_memory() end
    for _, note in ipairs(given.notes) do apply_note(note) end
    for _, outcome in ipairs(given.outcomes) do
        local token, key, status, again_in, runs, visit, name, number_of_lane = unpack(outcome, 1, 8)
        local site, lane = held_lane(token)
        local kept = false
        if site then
            local batch = batch_of(site, lane)
            if again_in ~= '' then kept = call('HGET', batch, key) end
            kept = call('HDEL', batch, key) == 1 and (kept or true)
        end
        if kept then
            accepted = accepted + 1
            touched[token] = true
            set(site, 'leased', num(site, 'leased') - 1)
            count('leased', -1)
            if total('lapsed') > 0 and call('HDEL', prefix .. 'lapses', key) == 1 then count('lapsed', -1) end
            settle(site, kept ~= true and string.sub(kept, 5), status, again_in, visit)
            admit(runs)
        else
            pass_over(runs)
            local settled = site or load_site(given.names[name])['l' .. number_of_lane] == token
            if settled then repeated = repeated + 1 else stale = stale + 1 end
        end
    end
    for token in pairs(touched) do finish_lane(held_lane(token)) end
    count('stale', stale)
    if accepted > 0 or #given.notes > 0 then count('news', 1) end
    return { accepted, stale, repeated, admitted }
end

-- Entries that no client can read.
function operations.park()
    needs_no_memory()
    local site, lane = held_lane(given.token)
    if not site then return end
    for _, key in ipairs(given.keys) do
        if call('HDEL', batch_of(site, lane), key) == 1 then
            set(site, 'leased', num(site, 'leased') - 1)
            count('leased', -1)
            count('parked', 1)
        end
    end
    finish_lane(site, lane)
end

function operations.release()
    needs_no_memory()
    for _, token in ipairs(given.tokens) do
        local site, lane = held_lane(token)
        if site then
            set(site, 'r' .. lane, job.restarts)
            free(site, lane, now)
        end
    end
end

function operations.abandon()
    needs_no_memory()
    local gone = 0
    for _, token in ipairs(call('HKEYS', prefix .. 'held')) do
        local site, lane = held_lane(token)
        if site and site['w' .. lane] == given.worker then
            lapse(site, lane, now + lane_delay(site), given.blamed)
            gone = gone + 1
        end
    end
    return gone
end

-- Run by the first client that finds the scripts of the server gone, as they are after a start or a fail-over.
function operations.restart()
    needs_no_memory()
    count('restarts', 1)
    call('HSET', job_key, 'rest_until', text(now + number('longest')))
end

function operations.steer()
    needs_no_memory()
    job.state = given.state
    call('HSET', job_key, 'state', given.state)
    count('news', 1)
end

function operations.counts()
    local counts = {}
    for _, name in ipairs({
        'queued', 'delayed', 'leased', 'done', 'failed', 'skipped', 'parked', 'stale', 'stored', 'revisits', 'known', 'sites',
    }) do
        counts[#counts + 1] = name
        counts[#counts + 1] = total(name)
    end
    return {
        state(), is_over() and 1 or 0, counts, call('ZCOUNT', prefix .. 'ready:' .. given.region, '-inf', text(now)),
        call('HLEN', prefix .. 'held'), call('ZCOUNT', prefix .. 'holds', '(' .. text(now), '+inf'),
    }
end

local answer = operations[operation]()
enter_ready()
if operation ~= 'counts' and operation ~= 'unknown' then
    if admitted > 0 then count('news', 1) end
    for name, by in pairs(counted) do
        local value = call('HINCRBY', job_key, name, by)
        if name == 'news' then call('PUBLISH', prefix .. 'news', value) end
    end
    local changed = { 'now', text(now) }
    if job.token then changed[3], changed[4] = 'token', job.token end
    if skew ~= number('skew') then
        changed[#changed + 1] = 'skew'
        changed[#changed + 1] = text(skew)
    end
    call('HSET', job_key, unpack(changed))
    for name, site in pairs(sites) do
        local fields = {}
        for field, value in pairs(site.changed) do
            fields[#fields + 1] = field
            fields[#fields + 1] = value
        end
        if #fields > 0 then call('HSET', place('site', name), unpack(fields)) end
    end
end
return answer
