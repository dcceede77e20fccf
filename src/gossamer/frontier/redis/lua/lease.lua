-- Leasing: hand out lanes that are due, and take back those whose lease has ended (P2, P5, P9).
--
-- There is no sweeper. ready:REGION holds free and leased lanes alike, a leased one at the end of its lease plus one
-- delay. So a lane of a dead worker comes up by itself, in the order of time, and the worker that finds it expires the old lease
-- and takes the lane. A request is in a queue or in a batch, never in both: `take` removes it, `free` puts it back.
--
-- The order: look at the state of the job, ask for memory (the one moment at which Redis may refuse the call), note a
-- restart of the server, store the longest lease time, and only then take anything. `rest_until` is computed from that
-- time after a restart, so it must not be shorter than any lease that was granted.

-- The sets of ready lanes that this worker may lease from, the one whose first lane has waited longest first.
local function ready_sets()
    local found = {}
    for _, region in ipairs(given.regions) do
        local name = prefix .. 'ready:' .. region
        local first = call('ZRANGE', name, 0, 0, 'WITHSCORES')
        if first[2] then found[#found + 1] = { name, tonumber(first[2]) } end
    end
    table.sort(found, function(a, b) return a[2] < b[2] end)
    return found
end
-- The first time in this set at which this worker may get a lane. Lanes that are due but were refused do not count: a worker
-- that waited for them would ask again at once, and without end. It reads one entry more than were refused.
local function first_ready(ready, refused)
    local refusals = 0
    for _ in pairs(refused) do refusals = refusals + 1 end
    local first = call('ZRANGE', ready, 0, refusals, 'WITHSCORES')
    for index = 1, #first, 2 do
        local at = tonumber(first[index + 1])
        if not refused[first[index]] or at > now then return at end
    end
    return nil
end
-- With nothing left of the page limit, the loop below would not look at a single lane. The pages that are missing to the
-- limit are in leases, and those of dead workers must be taken back, or the job would never end.
local function expire_ended_leases()
    for _, token in ipairs(call('HKEYS', prefix .. 'held')) do
        local site, lane = held_lane(token)
        if ready_at(site, lane) <= now then expire_lease(site, lane, now) end
    end
end
-- With nothing left of the page limit, only the end of a lease can bring more work.
local function first_end()
    local first = nil
    for _, token in ipairs(call('HKEYS', prefix .. 'held')) do
        local site, lane = held_lane(token)
        local at = ready_at(site, lane)
        if not first or at < first then first = at end
    end
    return first
end
-- Requests wait, nothing is leased, and no ready set exists: somebody has deleted keys. An error is better than a job whose
-- workers wait without end.
local function check_ready_sets()
    local names = { prefix .. 'held' }
    for _, region in ipairs(all_regions()) do names[#names + 1] = prefix .. 'ready:' .. region end
    if total('outbox') == 0 and call('EXISTS', unpack(names)) == 0 and not is_over() then
        damaged(names[#names], 'is gone: ' .. whole(total('queued') + total('delayed')) .. ' requests wait')
    end
end

-- Lease up to `limit` lanes. A worker that holds a suspect gets no second one, so that its death names the one that is to
-- blame (P10). The client of several shards passes `suspects`, since a shard knows of its own suspects only.
--
-- A lane is tried once for each call. One that a site over its quota has is put aside and gets what the others leave. After
-- each round the ready sets are written, so that the next read does not return lanes that were just leased.
function operations.lease()
    if job.state ~= 'running' or is_over() then
        return { {}, false, state(), total('news'), {}, total('lapsed'), total('handed'), 0, job.run or '', total('outbox') }
    end
    needs_memory()
    if given.seconds > number('longest') then call('HSET', job_key, 'longest', given.seconds) end
    if (given.forget or 0) > number('forget') then call('HSET', job_key, 'forget', given.forget) end
    if room() <= 0 then expire_ended_leases() end
    local leases, left, busy = {}, room(), not given.suspects or has_suspect(given.worker)
    local passed, refused, over, sets = {}, {}, {}, ready_sets()
    local function try(found, lane, site, most)
        local lease = lease_lane(site, lane, math.min(given.batch, left, most), not busy)
        if lease then
            leases[#leases + 1] = lease
            left = left - #lease[4]
            busy = busy or lease[9] == 1
        else
            refused[found] = true
        end
        return #leases >= given.limit or left <= 0
    end
    for _, ready in ipairs(sets) do
        local fresh, behind = 1, 0
        while #leases < given.limit and left > 0 and fresh > 0 do
            fresh = 0
            local due = call('ZRANGEBYSCORE', ready[1], '-inf', text(now), 'LIMIT', behind, given.limit + 16)
            for _, found in ipairs(due) do
                if not passed[found] then
                    passed[found] = true
                    fresh = fresh + 1
                    local lane, site = lane_and_site(found)
                    -- Still leased, and due: its lease has ended, and one delay has passed since.
                    if num(site, 't' .. lane) ~= 0 then expire_lease(site, lane, now) end
                    local most = share_left(site)
                    if most == 0 then
                        over[#over + 1] = { found, lane, site }
                        behind = behind + 1
                    elseif try(found, lane, site, most) then
                        break
                    end
                end
            end
            enter_ready()
            woken = {}
        end
    end
    -- Sites over their quota get what the others leave; in a job of several shards, once all shards have been asked.
    for _, lane in ipairs(given.over_quota and over or {}) do
        if #leases >= given.limit or left <= 0 then break end
        try(lane[1], lane[2], lane[3], given.batch)
    end
    enter_ready()
    woken = {}
    local first = nil
    if left > 0 then
        for _, ready in ipairs(sets) do
            local at = first_ready(ready[1], refused)
            if at and (not first or at < first) then first = at end
        end
    else
        first = first_end()
    end
    if #leases == 0 then check_ready_sets() end
    return {
        leases, first and text(math.max(0, first - now)) or false, state(), total('news'), to_unfold, total('lapsed'),
        total('handed'), given.over_quota and 0 or #over, job.run or '', total('outbox'),
    }
end

-- Extend leases that have not ended. One that has ended is not revived, even if nobody has taken its lane yet: its holder
-- stops at the end of the lease by its own clock, and must not start again.
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

