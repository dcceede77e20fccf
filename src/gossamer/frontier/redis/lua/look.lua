-- The run of the server, the same for all its shards. A user who may not run INFO never notices a restart.
function operations.run()
    needs_no_memory()
    return job.run or 'unknown'
end

-- Succeeds only at the server that serves the shard: elsewhere the record refuses the call and says where to go.
function operations.where() return 1 end

function operations.steer()
    needs_no_memory()
    job.state = given.state
    call('HSET', job_key, 'state', given.state)
    count('news', 1)
end

function operations.counts()
    local counts = {}
    for _, name in ipairs({
        'queued', 'delayed', 'leased', 'done', 'failed', 'skipped', 'parked', 'stale', 'stored', 'revisits', 'known', 'sites', 'outbox',
    }) do
        counts[#counts + 1] = name
        counts[#counts + 1] = total(name)
    end
    local regions = {}
    for _, region in ipairs(all_regions()) do
        local name = prefix .. 'ready:' .. region
        local ready = call('ZCOUNT', name, '-inf', text(now))
        local first = call('ZRANGEBYSCORE', name, '(' .. text(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
        regions[#regions + 1] = {
            region, ready, call('ZCARD', name) - ready,
            -- Leased lanes are in the set too, at the end of their lease.
            call('ZCOUNT', name, '(' .. text(now), text(now + number('longest') + 60)),
            first[2] and text(tonumber(first[2]) - now) or '',
        }
    end
    return {
        state(), is_over() and 1 or 0, counts, regions, call('HLEN', prefix .. 'held'),
        call('ZCOUNT', prefix .. 'holds', '(' .. text(now), '+inf'), total('news'), total('pages'), total('fresh'),
    }
end

-- Heartbeats of workers, kept for ten minutes. They are shown to people; no lease depends on them.
function operations.beat()
    needs_no_memory()
    for _, worker in ipairs(call('ZRANGEBYSCORE', prefix .. 'beats', '-inf', text(now - 600), 'LIMIT', 0, MANY)) do
        call('HDEL', prefix .. 'workers', worker)
        call('ZREM', prefix .. 'beats', worker)
    end
    call('HSET', prefix .. 'workers', given.worker, given.pulse)
    call('ZADD', prefix .. 'beats', text(now), given.worker)
end
function operations.workers()
    local found = {}
    local beats = call('ZRANGEBYSCORE', prefix .. 'beats', text(now - 600), '+inf', 'WITHSCORES')
    for index = 1, #beats, 2 do
        local pulse = call('HGET', prefix .. 'workers', beats[index])
        if pulse then found[#found + 1] = { pulse, text(now - tonumber(beats[index + 1])) } end
    end
    return found
end

-- Set the delays of sites that are known; new sites start with theirs.
function operations.own()
    needs_no_memory()
    for name, delay in pairs(given.delays) do
        local site = load_site(name)
        if site.allowed then
            set(site, 'own', text(delay))
            wake(site)
        end
    end
    return 0
end

-- The page limit of a job is divided among its shards. The record of the first shard is the ledger: `reserved` is the sum of
-- what all shards were given. Pages are taken from the ledger before they are added to a shard, so a crash in between
-- leaves too few pages allowed, never too many; the clients compare the sums and correct that.
function operations.limit()
    needs_no_memory()
    if not given.pages then
        call('HDEL', job_key, 'allowance', 'reserved')
        return 0
    end
    if not job.allowance then
        job.allowance = whole(total('stored') + total('leased'))
        call('HSET', job_key, 'allowance', job.allowance)
    end
    if given.reserved and not job.reserved then call('HSET', job_key, 'reserved', given.reserved) end
    return tonumber(job.allowance)
end
-- At the ledger: take pages from the rest, or give them back; how many were moved, and how many are left.
function operations.reserve()
    needs_no_memory()
    if not job.reserved then return { 0, 0 } end
    local left = given.limit - number('reserved')
    if given.only_full and left > 0 then return { 0, left } end
    -- After the limit was lowered, the rest may be negative; shards give pages back by `allow`.
    local taken = given.pages > 0 and math.max(0, math.min(given.pages, left)) or math.max(given.pages, -number('reserved'))
    call('HINCRBY', job_key, 'reserved', whole(taken))
    return { taken, left - taken }
end
-- At a shard: raise or lower what it may store; only unused pages can be taken. How many were moved, and what is left.
function operations.allow()
    needs_no_memory()
    if not job.allowance then return { 0, room() } end
    local pages = math.max(given.pages, -math.max(0, room()))
    call('HINCRBY', job_key, 'allowance', whole(pages))
    job.allowance = number('allowance') + pages
    if pages > 0 then count('news', 1) end
    return { pages, room() }
end

