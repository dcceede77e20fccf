-- The same for all shards of the server. A user who may not ask for it is never heard of a restart.
function operations.run()
    needs_no_memory()
    return job.run or 'unknown'
end

-- Passes only where the shard is.
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
            -- A lane that is leased comes up when its lease has ended.
            call('ZCOUNT', name, '(' .. text(now), text(now + number('longest') + 60)),
            first[2] and text(tonumber(first[2]) - now) or '',
        }
    end
    return {
        state(), is_over() and 1 or 0, counts, regions, call('HLEN', prefix .. 'held'),
        call('ZCOUNT', prefix .. 'holds', '(' .. text(now), '+inf'), total('news'), total('pages'), total('fresh'),
    }
end

-- Pulses of workers, kept for ten minutes.
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

-- The delays of single sites, as far as these are known; others begin with theirs.
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

-- What the job may store is shared out among its shards, by the ledger: the record of the first.
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
-- Of the ledger: takes pages from what is left, or gives them back; how many, and how many are left then.
function operations.reserve()
    needs_no_memory()
    if not job.reserved then return { 0, 0 } end
    local left = given.limit - number('reserved')
    -- Where the limit was lowered, less than nothing may be left: none of that is taken back here.
    local taken = given.pages > 0 and math.max(0, math.min(given.pages, left)) or math.max(given.pages, -number('reserved'))
    call('HINCRBY', job_key, 'reserved', whole(taken))
    return { taken, left - taken }
end
-- Of a shard: how many pages more, or less, it may store; only what is not used yet can be taken away. What is left then.
function operations.allow()
    needs_no_memory()
    if not job.allowance then return { 0, room() } end
    local pages = math.max(given.pages, -math.max(0, room()))
    call('HINCRBY', job_key, 'allowance', whole(pages))
    job.allowance = number('allowance') + pages
    if pages > 0 then count('news', 1) end
    return { pages, room() }
end

