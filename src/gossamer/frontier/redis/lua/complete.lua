-- Outcomes ---------------------------------------------------------------------------------------------------------
--
-- `complete` commits outcomes with their links, the notes about sites, and the parcels for other servers, in one script
-- (P3). What belongs together, and in which order:
--
-- 1. All refusals, before anything of the outcomes is written: no memory, another run than the caller's links were
--    acknowledged in, a shard that may leave. Redis does not undo what a failed script has written.
-- 2. Notes, so that a hold, a delay, or the end of a site applies to the outcomes of the same call.
-- 3. Outcomes. The batch decides: an outcome counts if its token holds a lane and its key is still in the batch of that
--    lane (P4). Removing the key is what makes a repeat change nothing. Links are admitted beside their outcome; links of
--    an outcome that does not count are skipped.
-- 4. Lanes whose batch is empty are freed, one delay from now (P5).
-- 5. Parcels, so that a link for another server is in the outbox from the moment at which its page is done.
--
-- If the server dies before its answer arrives, the client repeats the call. Either all of it was applied, or nothing.

-- The sums over all sites of the tallies in recrawl.py: pages that come again, and millionths of their freshness.
local function tallied(value)
    local is_json, tally = pcall(cjson.decode, value or '{}')
    if not is_json or type(tally) ~= 'table' then return 0, 0 end
    return tonumber(tally.n) or 0, math.floor((tonumber(tally.f) or 0) * 1000000 + 0.5)
end
local function count_fresh(site, name, value)
    if string.sub(name, 1, 5) ~= 'rates' then return end
    local pages, fresh = tallied(value)
    local old_pages, old_fresh = tallied(call('HGET', place('memo', site.name), name))
    count('pages', pages - old_pages)
    count('fresh', fresh - old_fresh)
end
-- A hold is never shortened. A note by a stale token is ignored: its worker may know less than the present one (P4).
local function apply_note(note)
    local site = held_lane(note[1])
    if not site then return 0 end
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
    if #note[5] > 0 then
        for index = 1, #note[5], 2 do count_fresh(site, note[5][index], note[5][index + 1]) end
        call('HSET', place('memo', site.name), unpack(note[5]))
    end
    if close_reason ~= '' then close(site, close_reason) end
    if note[7] then move_to(site, note[7]) end
    wake(site)
    return 1
end

local FAR_SECONDS = 86400
-- Count an outcome, and queue the request again if it is to come again: a retry with one try more, a revisit with the state
-- that the visit left behind. On a closed site nothing waits any more: a retry ends as what the site was closed for, a
-- page that was done stays done.
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
    if status ~= 'retry' then count('revisits', 1) end
    local wait = tonumber(again_in)
    local is_far = wait >= FAR_SECONDS and (status == 'done' or status == 'failed')
    -- The rank of a slot shows for all its entries whether they were done or failed, so these need not.
    fields[AGAIN] = (status == 'retry' or is_far) and '' or status
    local push = is_far and push_slot or push_later
    push(site, with_fields(entry, fields), now + wait, status)
end
-- Free a lane whose batch is empty. `l` keeps its last token, which distinguishes a repeated outcome from a stale one. A site
-- whose budget is spent is closed once no other lane of it is leased.
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
    local accepted, stale, repeated, touched, batches = 0, 0, 0, {}, {}
    if #entries > 0 or given.parcels then needs_memory() else needs_no_memory() end
    -- Links for other shards of this server were acknowledged in another run, and may be gone. Without the right to run
    -- INFO no run is known, and nothing is refused.
    if given.run and present_run and given.run ~= 'unknown' and given.run ~= present_run then
        error({ err = 'TRYAGAIN this server was started again since it took the links' })
    end
    -- The page may soon be on another server than those links, which are in no outbox: the caller has to file parcels.
    if given.run and job.leaving then error({ err = 'PARCELS the shard may move to ' .. job.leaving }) end
    local noted = 0
    for _, note in ipairs(given.notes) do noted = noted + apply_note(note) end
    for _, outcome in ipairs(given.outcomes) do
        local token, key, status, again_in, links, visit, name, number_of_lane = unpack(outcome, 1, 8)
        local site, lane = held_lane(token)
        local kept = false
        if site then
            local batch = batches[token]
            if not batch then
                batch = batch_of(site, lane)
                batches[token] = batch
            end
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
            admit(links)
        else
            pass_over(links)
            -- A repeat: the token still holds the lane, or was the last one to finish it. Anything else is stale.
            local settled = site or load_site(given.names[name])['l' .. number_of_lane] == token
            if settled then repeated = repeated + 1 else stale = stale + 1 end
        end
    end
    enqueue_gathered()
    for token in pairs(touched) do finish_lane(held_lane(token)) end
    count('stale', stale)
    if accepted + noted > 0 then count('news', 1) end
    post(given.parcels)
    return { accepted, stale, repeated, admitted, to_fold, job.run or '', total('outbox') }
end

-- Entries that no client can read are counted as parked. Left in the batch, they would come back with every expired lease.
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

-- Give lanes back. What is left of a batch returns to the head of the queue without a mark: nobody died. The lane rests for
-- one delay, since a request may have been sent a moment ago.
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

-- Take back at once what a dead worker held. Only the blamed keys, those in its hands, count as lost with it (P10).
function operations.abandon()
    needs_no_memory()
    local gone = 0
    for _, token in ipairs(call('HKEYS', prefix .. 'held')) do
        local site, lane = held_lane(token)
        if site and site['w' .. lane] == given.worker then
            expire_lease(site, lane, now + lane_delay(site), given.blamed)
            gone = gone + 1
        end
    end
    return gone
end

