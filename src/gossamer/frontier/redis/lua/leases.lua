-- Leases -----------------------------------------------------------------------------------------------------------
--
-- A lane I of a site is leased while its field tI is not '0'. `held` maps the token to the lane, batch:S:I has its requests.
-- `free` is the only way out of a lease: it empties the batch, forgets the token, and sets nI, when the lane may be leased
-- again. Callers choose from when the lane rests: from now after a completion or a release; for an expired lease from one
-- delay ago, because the lane came up one delay after the lease had ended (P5).

local function lane_and_site(found)
    local space = string.find(found, ' ', 1, true)
    return string.sub(found, 1, space - 1), must_be_there(load_site(string.sub(found, space + 1)))
end
local held = {}
-- The site and the lane of a token; nil for one that is not held any more, whose outcomes and notes change nothing (P4).
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
        -- Each is pushed to the head, so the last one goes first. The position in the batch is the prefix of the value.
        table.sort(left, function(a, b) return a > b end)
        for _, kept in ipairs(left) do put_back(site, string.sub(kept, 5)) end
    end
    local token = site['t' .. lane]
    call('HDEL', prefix .. 'held', token)
    held[token] = false
    set(site, 't' .. lane, '0')
    if site.rules or job.robots ~= '1' then open_lanes(site, from) end
    set(site, 'n' .. lane, text(math.max(num(site, 'n' .. lane), from + lane_delay(site))))
    if site.closed then close(site, site.closed) end
    wake(site)
    count('news', 1)
end
-- A lease ended with its worker. Every key of the batch, or only the blamed ones, counts as lost once more: at two losses
-- `put_back` makes it a suspect, which is leased alone; at max_deliveries it is parked (P10). So one page that kills its
-- workers costs its neighbors a few deliveries, and then nothing.
local function expire_lease(site, lane, from, blamed)
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
-- A job with one shard has its page limit in the record, which may have changed since the worker started, so the record comes
-- before the argument. Each of several shards has an allowance, a part of the limit.
local function max_pages() return tonumber(job.max_pages or given.max_pages or job.allowance or '') end
local function room()
    local limit = max_pages()
    return limit and limit - total('stored') - total('leased') or 9007199254740992
end
-- Whether nothing is left to do (P6). Leased requests may bring links, and parcels may have to be delivered again, so both keep
-- the job running. Revisits that are not due do not, except in a continuous crawl.
local function is_over()
    if total('leased') > 0 then return false end
    local limit = max_pages()
    if limit and total('stored') >= limit then return true end
    if total('queued') + total('delayed') > total('revisits') or total('outbox') > 0 then return false end
    if total('revisits') > 0 then
        if job.recrawl == '1' then return false end
        local first = call('ZRANGE', prefix .. 'dues', 0, 0, 'WITHSCORES')
        return not first[2] or tonumber(first[2]) > now
    end
    return true
end
local function state()
    if job.state == 'running' and is_over() then return 'finished' end
    return job.state
end

-- A server that restarted may have lost its last second, and in it a lease. The holder of that lease goes on fetching from the
-- site until the lease would have ended. So after a restart each lane rests until then, once: rI is the restart after which
-- the lane has rested or been used, and nI is known to be correct (P5). After a promotion it rests for the forget time more.
local function must_rest(site, lane)
    local rest = number('rest_until') + lane_delay(site)
    if rest <= now or site['r' .. lane] == job.restarts then return false end
    set(site, 'r' .. lane, job.restarts)
    set(site, 'n' .. lane, text(math.max(num(site, 'n' .. lane), rest)))
    wake(site)
    return true
end
-- The quota of sites, by the rule of `SiteQuota` in policy.py: what a site was handed in the present half of the window and in
-- the one before. A worker that does not know what other shards have handed out may compute an older half than the site has
-- counted in; the newer one is used.
local function share_number() return math.floor((total('handed') + (given.handed_elsewhere or 0)) / number('share_half')) end
local function shares_of(site)
    local age = share_number() - num(site, 'sh')
    if age <= 0 then return num(site, 'sn'), num(site, 'sb') end
    return 0, age == 1 and num(site, 'sn') or 0
end
local function share_left(site)
    local this_half, before = shares_of(site)
    return math.max(0, number('share_most') - this_half - before)
end
local function count_share(site, requests)
    local this_half, before = shares_of(site)
    set(site, 'sh', whole(math.max(share_number(), num(site, 'sh'))))
    set(site, 'sn', this_half + requests)
    set(site, 'sb', before)
    count('handed', requests)
end

-- Tokens are microseconds of the store's clock, or one more than the last token where that is larger. So they also grow past
-- tokens that a server has forgotten (P4). Modulo the number of shards they give the shard: no two shards give the same.
local function next_token()
    local token, shards = math.max(total('token') + 1, math.floor(now * 1000000)), number('shards')
    if shards > 1 then token = token + (number('shard') - token) % shards end
    job.token, counted.token = whole(token), nil
    return job.token
end
-- Lease one lane with up to `wanted` requests; nil if it is not ready, not allowed, or has nothing. A batch is no larger than
-- what fits into half of the lease time at the delay of the site, so that a worker finishes it without extending.
-- A key that is in the queue twice, which takes a damaged queue, is leased once; the extra entry counts as parked (P2).
local function lease_lane(site, lane, wanted, may_suspect)
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
    local token = next_token()
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
    count_share(site, size)
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

