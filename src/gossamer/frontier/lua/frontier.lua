-- The frontier of one shard of a job. Every call is one run of this script, and so atomic.
--
-- KEYS[1] is the job's record; all other keys share its hash tag.   ARGV: the operation, and its arguments in msgpack.
--
--   job            hash    state, counters, the last token, the last time
--   seen:N         sets    of the integers of known keys; linear hashing keeps each below 512, where Redis packs them
--   site:S         hash    delay, hold, closed, lanes, and for lane i: t(oken) e(xpires) n(ext) w(orker) x(suspect) l(ast token)
--   robots:S       hash    origin -> rules        memo:S  hash  name -> value
--   ranks:S        zset    the ranks of queue:S:R, lists of entries in their order
--   front:S        list    entries that go first  suspects:S  list  entries that go alone
--   later:S        zset    entry -> when it is due
--   batch:S:I      hash    key -> entry, of the lane's lease
--   held           hash    token -> lane, site
--   ready:REGION   zset    "lane site" -> when the lane is ready; a leased one when its lease has ended
--   lapses         hash    key -> lost deliveries
--
-- An entry is a key (8 bytes) and a msgpack array; what is in it is the client's but for the fields named here.
local TRIES, STATE, AGAIN, ORDER = 5, 8, 9, 10

local job_key = KEYS[1]
local prefix = string.sub(job_key, 1, -4)
local call = redis.call
local operation, given = ARGV[1], cmsgpack.unpack(ARGV[2])

local job = {}
do
    local flat = call('HGETALL', job_key)
    for i = 1, #flat, 2 do job[flat[i]] = flat[i + 1] end
end
local counted = {}
local function number(name) return tonumber(job[name] or '0') end
local function count(name, by)
    if by ~= 0 then counted[name] = (counted[name] or 0) + by end
end
local function total(name) return number(name) + (counted[name] or 0) end

-- The store's clock, which never steps back within a job.
local time = call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000 + number('skew')
now = math.max(number('now'), math.floor(now * 1000000) / 1000000)
local SOON = now + 0.00001

local function text(value) return string.format('%.6f', value) end
local function whole(value) return string.format('%.0f', value) end
local function key_of(entry) return string.sub(entry, 1, 8) end
local function place(name, site) return prefix .. name .. ':' .. site end
local function member(site, lane) return lane .. ' ' .. site end

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
local function set(site, field, value)
    site[field] = value
    site.changed[field] = value
end
local function num(site, field) return tonumber(site[field] or '0') end

local function lanes_of(site) return math.max(1, num(site, 'lanes')) end
local function delay_of(site) return math.max(tonumber(site.own or job.delay), num(site, 'asked')) end
local function lane_delay(site) return delay_of(site) * lanes_of(site) end

local function queued_on(site)
    return num(site, 'queued') + num(site, 'suspects')
end
local function ready_at(site, lane)
    if num(site, 't' .. lane) ~= 0 then return num(site, 'e' .. lane) + lane_delay(site) end
    local allowed = math.max(num(site, 'n' .. lane), num(site, 'hold'))
    if queued_on(site) > 0 then return allowed end
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
local function new_site(name, given_site)
    local site = load_site(name)
    if not site.allowed then
        set(site, 'allowed', given_site[2])
        if given_site[1] then set(site, 'own', text(given_site[1])) end
        set(site, 'lanes', 1)
        set(site, 'n0', text(now))
        if given_site[3] then set(site, 'budget', given_site[3]) end
        if given_site[4] ~= '' then set(site, 'region', given_site[4]) end
        if given_site[5] then open_lanes(site) end
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

local function push(site, rank, entry)
    if number('lapsed') + (counted.lapsed or 0) > 0 and lapses_of(entry) >= 2 then
        call('RPUSH', place('suspects', site.name), entry)
        set(site, 'suspects', num(site, 'suspects') + 1)
    else
        if rank == '' then
            call('LPUSH', place('front', site.name), entry)
        else
            local list = place('queue', site.name) .. ':' .. rank
            if call('RPUSH', list, entry) == 1 then call('ZADD', place('ranks', site.name), rank, rank) end
        end
        set(site, 'queued', num(site, 'queued') + 1)
    end
    count('queued', 1)
    wake(site)
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
        local fields = cmsgpack.unpack(string.sub(entry, 9))
        local again = fields[AGAIN]
        if again and again ~= '' then
            count('revisits', -1)
            count(again, -1)
            fields[AGAIN] = ''
            entry = key_of(entry) .. cmsgpack.pack(fields)
        end
        push(site, '', entry)
    end
end
local function pop(site)
    local entry = call('LPOP', place('front', site.name))
    if not entry then
        local rank = call('ZRANGE', place('ranks', site.name), 0, 0)[1]
        if not rank then return nil end
        local list = place('queue', site.name) .. ':' .. rank
        if job.strategy == 'dfs' then
            entry = call('RPOP', list)
        elseif job.strategy == 'random' then
            local size = call('LLEN', list)
            local pick = size > 1 and math.random(0, size - 1) or 0
            entry = call('LINDEX', list, pick)
            local first = call('LPOP', list)
            if pick > 0 then call('LSET', list, pick - 1, first) end
        else
            entry = call('LPOP', list)
        end
        if call('EXISTS', list) == 0 then call('ZREM', place('ranks', site.name), rank) end
        if not entry then return nil end
    end
    set(site, 'queued', num(site, 'queued') - 1)
    return entry
end
local function take(site, wanted, may_suspect)
    come_due(site)
    if may_suspect and num(site, 'suspects') > 0 then
        set(site, 'suspects', num(site, 'suspects') - 1)
        count('queued', -1)
        return { call('LPOP', place('suspects', site.name)) }, true
    end
    local taken = {}
    while #taken < wanted do
        local entry = pop(site)
        if not entry then break end
        taken[#taken + 1] = entry
    end
    count('queued', -#taken)
    return taken, false
end
local function close(site, reason)
    local dropped = queued_on(site)
    for _, rank in ipairs(call('ZRANGE', place('ranks', site.name), 0, -1)) do
        call('DEL', place('queue', site.name) .. ':' .. rank)
    end
    local revisits = 0
    for _, entry in ipairs(call('ZRANGE', place('later', site.name), 0, -1)) do
        local again = cmsgpack.unpack(string.sub(entry, 9))[AGAIN]
        if again and again ~= '' then revisits = revisits + 1 end
    end
    call('DEL', place('ranks', site.name), place('front', site.name), place('suspects', site.name), place('later', site.name))
    count('queued', -dropped)
    count('delayed', -num(site, 'later'))
    count('revisits', -revisits)
    dropped = dropped + num(site, 'later') - revisits
    set(site, 'queued', 0)
    set(site, 'suspects', 0)
    set(site, 'later', 0)
    set(site, 'closed', reason)
    count(closed_counter(reason), dropped)
    wake(site)
end

-- Leases -----------------------------------------------------------------------------------------------------------

local function held_lane(token)
    local found = call('HGET', prefix .. 'held', token)
    if not found then return nil end
    local space = string.find(found, ' ', 1, true)
    return load_site(string.sub(found, space + 1)), string.sub(found, 1, space - 1)
end
local function batch_of(site, lane) return place('batch', site.name) .. ':' .. lane end

local function free(site, lane, from)
    local batch = batch_of(site, lane)
    local left = call('HVALS', batch)
    if #left > 0 then
        call('DEL', batch)
        set(site, 'leased', num(site, 'leased') - #left)
        count('leased', -#left)
        -- Hashes have no order; entries carry theirs, so that what goes back to the head goes back as it was.
        table.sort(left, function(a, b)
            return cmsgpack.unpack(string.sub(a, 9))[ORDER] > cmsgpack.unpack(string.sub(b, 9))[ORDER]
        end)
        for _, entry in ipairs(left) do push(site, '', entry) end
    end
    call('HDEL', prefix .. 'held', site['t' .. lane])
    set(site, 't' .. lane, 0)
    set(site, 'x' .. lane, 0)
    if site.rules or job.robots ~= '1' then open_lanes(site) end
    set(site, 'n' .. lane, text(math.max(num(site, 'n' .. lane), from + lane_delay(site))))
    if site.closed then close(site, site.closed) end
    wake(site)
    count('news', 1)
end
local function lapse(site, lane, from, blamed)
    local batch = batch_of(site, lane)
    for _, key in ipairs(blamed or call('HKEYS', batch)) do
        if call('HEXISTS', batch, key) == 1 then
            local lapses = call('HINCRBY', prefix .. 'lapses', key, 1)
            if lapses == 1 then count('lapsed', 1) end
            if lapses >= number('max_deliveries') then
                call('HDEL', batch, key)
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
    if not job.format then return 'missing' end
    if job.state == 'running' and is_over() then return 'finished' end
    return job.state
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
    local at = ready_at(site, lane)
    if not at or at > SOON then
        wake(site)
        return nil
    end
    local delay = lane_delay(site)
    local size = math.min(wanted, room_on(site))
    if delay > 0 then size = math.min(size, math.max(1, math.floor(given.seconds / 2 / delay))) end
    local entries, alone = take(site, size, may_suspect)
    if #entries == 0 then
        wake(site)
        return nil
    end
    local token = whole(math.max(total('token') + 1, math.floor(now * 1000000)))
    job.token, counted.token = token, nil
    local fields = {}
    for index, entry in ipairs(entries) do
        local parts = cmsgpack.unpack(string.sub(entry, 9))
        parts[ORDER] = index
        local kept = key_of(entry) .. cmsgpack.pack(parts)
        fields[#fields + 1] = key_of(entry)
        fields[#fields + 1] = kept
    end
    call('HSET', batch_of(site, lane), unpack(fields))
    call('HSET', prefix .. 'held', token, member(site.name, lane))
    set(site, 't' .. lane, token)
    set(site, 'e' .. lane, text(now + given.seconds))
    set(site, 'w' .. lane, given.worker)
    set(site, 'x' .. lane, alone and 1 or 0)
    set(site, 'leased', num(site, 'leased') + #entries)
    count('leased', #entries)
    wake(site)
    return {
        site.name, tonumber(lane), token, entries, text(delay), lanes_of(site),
        call('HGETALL', place('robots', site.name)), call('HGETALL', place('memo', site.name)), alone and 1 or 0,
    }
end
local function has_suspect(worker)
    if number('lapsed') == 0 then return false end
    for _, found in ipairs(call('HVALS', prefix .. 'held')) do
        local space = string.find(found, ' ', 1, true)
        local lane, site = string.sub(found, 1, space - 1), load_site(string.sub(found, space + 1))
        if site['x' .. lane] == '1' and site['w' .. lane] == worker and ready_at(site, lane) > now then return true end
    end
    return false
end

-- Operations -------------------------------------------------------------------------------------------------------

local operations = {}

local function is_new(low, key)
    local level, split = number('seen_level'), number('seen_split')
    local bucket = low % (2 ^ level)
    if bucket < split then bucket = low % (2 ^ (level + 1)) end
    if call('SADD', prefix .. 'seen:' .. whole(bucket), key) == 0 then return false end
    count('known', 1)
    -- Linear hashing: one bucket is split at a time, whenever there are 256 members a bucket.
    if total('known') > 256 * (2 ^ level + split) then
        local from, into = prefix .. 'seen:' .. whole(split), prefix .. 'seen:' .. whole(split + 2 ^ level)
        local moved = {}
        for _, known in ipairs(call('SMEMBERS', from)) do
            -- Its last 24 bits decide, and those of a decimal of 19 digits are beyond a double: take them in two steps.
            local head, tail = string.sub(known, 1, -10), string.sub(known, -9)
            local bits = 2 ^ (level + 1)
            local rest = ((tonumber(head ~= '' and head or '0') % bits) * (1000000000 % bits) + tonumber(tail)) % bits
            if rest ~= split then moved[#moved + 1] = known end
        end
        for first = 1, #moved, 256 do
            local part = { unpack(moved, first, math.min(first + 255, #moved)) }
            call('SREM', from, unpack(part))
            call('SADD', into, unpack(part))
        end
        split = split + 1
        if split == 2 ^ level then level, split = level + 1, 0 end
        job.seen_level, job.seen_split = whole(level), whole(split)
        call('HSET', job_key, 'seen_level', job.seen_level, 'seen_split', job.seen_split)
    end
    return true
end
local function admit(links, site_settings)
    local added = 0
    for _, link in ipairs(links) do
        local low, key, name, rank, entry = link[1], link[2], link[3], link[4], link[5]
        if is_new(low, key) then
            added = added + 1
            local site = new_site(name, site_settings[name])
            if site.closed then
                count(closed_counter(site.closed), 1)
            else
                push(site, rank, entry)
            end
        end
    end
    if added > 0 then count('news', 1) end
    return added
end

function operations.add() return admit(given.links, given.sites) end

function operations.lease()
    if job.state ~= 'running' or is_over() then return { {}, false, state(), total('news') } end
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
                local space = string.find(found, ' ', 1, true)
                local lane, site = string.sub(found, 1, space - 1), load_site(string.sub(found, space + 1))
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
            if not refused[first[index]] then
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
    if wait then wait = text(math.max(0, wait)) end
    return { leases, wait, state(), total('news') }
end

function operations.extend()
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

function operations.complete()
    local accepted, stale, repeated = {}, 0, 0
    for _, note in ipairs(given.notes) do apply_note(note) end
    for index, outcome in ipairs(given.outcomes) do
        local token, key, status, again_in, links, visit = unpack(outcome, 1, 6)
        local site, lane = held_lane(token)
        local entry = site and call('HGET', batch_of(site, lane), key)
        if not entry then
            local known = site ~= nil
            if not known then
                local named = load_site(outcome[7])
                known = named['l' .. outcome[8]] == token
            end
            if known then repeated = repeated + 1 else stale = stale + 1 end
        else
            accepted[#accepted + 1] = index
            call('HDEL', batch_of(site, lane), key)
            set(site, 'leased', num(site, 'leased') - 1)
            count('leased', -1)
            if number('lapsed') + (counted.lapsed or 0) > 0 and call('HDEL', prefix .. 'lapses', key) == 1 then
                count('lapsed', -1)
            end
            if status ~= 'retry' then
                count(status, 1)
                if status == 'done' or status == 'failed' then
                    count('stored', 1)
                    set(site, 'stored', num(site, 'stored') + 1)
                end
            end
            if again_in ~= '' then
                if site.closed then
                    if status == 'retry' then count(closed_counter(site.closed), 1) end
                else
                    local fields = cmsgpack.unpack(string.sub(entry, 9))
                    fields[TRIES] = status == 'retry' and fields[TRIES] + 1 or 0
                    if status ~= 'retry' or visit ~= '' then fields[STATE] = visit end
                    fields[AGAIN] = status == 'retry' and '' or status
                    fields[ORDER] = 0
                    if status ~= 'retry' then count('revisits', 1) end
                    push_later(site, key .. cmsgpack.pack(fields), now + tonumber(again_in))
                end
            end
            admit(links, given.sites)
            if call('EXISTS', batch_of(site, lane)) == 0 then
                set(site, 'l' .. lane, token)
                free(site, lane, now)
            end
            if room_on(site) <= 0 and num(site, 'leased') == 0 and not site.closed
                and (queued_on(site) > 0 or num(site, 'later') > 0) then
                close(site, 'budget')
            end
        end
    end
    count('stale', stale)
    if #accepted > 0 or #given.notes > 0 then count('news', 1) end
    return { #accepted, stale, repeated, state(), total('news') }
end

function operations.release()
    for _, token in ipairs(given.tokens) do
        local site, lane = held_lane(token)
        if site then free(site, lane, now) end
    end
end

function operations.abandon()
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

function operations.steer()
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

if not job.format and operation ~= 'open' then return redis.error_reply('JOBMISSING there is no such job') end
local answer = operations[operation]()
enter_ready()
local writes = operation ~= 'counts'
if writes then
    for name, by in pairs(counted) do
        local value = call('HINCRBY', job_key, name, by)
        if name == 'news' then call('PUBLISH', prefix .. 'news', value) end
    end
    local changed = { 'now', text(now) }
    if job.token then changed[3], changed[4] = 'token', job.token end
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
