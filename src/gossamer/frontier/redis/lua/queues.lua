-- Queues -----------------------------------------------------------------------------------------------------------

-- Where the requests of a site wait: front:S goes first, with returned batches, retries and revisits that came due, and
-- redirects. Then the lists queue:S:R in the order of their ranks. suspects:S is apart: one at a time, alone (P10).
-- later:S has what waits for a time.
--
-- Long lists are packed into blocks (queue_blocks.py). Of each list the FOLD entries that go next stay plain; behind them come
-- blocks, which a client has packed in order; behind these are the newest entries, plain until there are BLOCKS x FOLD of
-- them, or FOLD in a slot of revisits, of which none goes next. Where the newest go first (dfs), or any (random), the blocks
-- are on the left and all plain entries on the right. The site stores the number of blocks of a list (bR), and the
-- number of entries before the first one (hR).
local FOLD = tonumber(job.fold or '128')
local BLOCKS = 4
-- A block is 255, the number of its entries in 3 bytes, 8 of a digest, and what only clients read.
local BLOCK_ID = 12
local LOOKED_AT_EACH = math.max(1, FOLD)
local MOST_FOLDED, MOST_UNFOLDED = 64, 16
local from_right = job.strategy == 'dfs' or job.strategy == 'random'
local to_fold, to_unfold, named = {}, {}, {}

local function queue_of(name, rank) return prefix .. 'queue:' .. name .. ':' .. rank end
local function set_blocks(site, rank, blocks, head)
    if blocks > 0 then
        set(site, 'b' .. rank, blocks)
        set(site, 'h' .. rank, head)
    else
        unset(site, 'b' .. rank, 'h' .. rank)
    end
end
-- The place behind the blocks of a list, and how many entries may be folded there.
local function behind_blocks(site, rank, size)
    local blocks, waits = num(site, 'b' .. rank), site['d' .. rank]
    local behind = (from_right or waits) and 0 or FOLD
    if blocks > 0 then behind = num(site, 'h' .. rank) + blocks end
    return behind, size - behind - (from_right and not waits and FOLD or 0)
end
local function ask_to_fold(name, rank, list, size, added)
    if FOLD == 0 or size < FOLD or named[list] or #to_fold >= MOST_FOLDED then return end
    if size % LOOKED_AT_EACH >= added then return end
    local site = load_site(name)
    local _, foldable = behind_blocks(site, rank, size)
    if foldable < (site['d' .. rank] and 1 or BLOCKS) * FOLD then return end
    named[list] = true
    to_fold[#to_fold + 1] = { name, rank }
end
local function ask_to_unfold(site, rank, list, blocks)
    if named[list] or #to_unfold >= MOST_UNFOLDED then return end
    local at = num(site, 'h' .. rank)
    if from_right then at = at + (job.strategy == 'dfs' and blocks - 1 or math.random(0, blocks - 1)) end
    local block = call('LINDEX', list, at)
    if not block or string.byte(block) ~= 255 then damaged(list, 'has lost a block') end
    named[list] = true
    to_unfold[#to_unfold + 1] = { site.name, rank, at, block }
end

local function lapses_of(entry) return tonumber(call('HGET', prefix .. 'lapses', key_of(entry)) or '0') end

-- Return a request to the head of its site's queue, or to the suspects if it was lost twice with its worker.
local function put_back(site, entry)
    if total('lapsed') > 0 and lapses_of(entry) >= 2 then
        call('RPUSH', place('suspects', site.name), entry)
    else
        call('LPUSH', place('front', site.name), entry)
    end
    count('queued', 1)
    wake(site)
end
-- Queue new entries, all of one site and rank. If others wait in the list already, the site is in its ready set, and need not
-- be read. The list was empty otherwise: the site may be new, closed, or asleep.
local function enqueue(name, rank, entries)
    local list = rank == '' and place('front', name) or queue_of(name, rank)
    local added, size = #entries, nil
    for first = 1, added, MANY do
        size = call(rank == '' and 'LPUSH' or 'RPUSH', list, unpack(entries, first, math.min(first + MANY - 1, added)))
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
    if size > FOLD and rank ~= '' then ask_to_fold(name, rank, list, size, added) end
end
local function push_later(site, entry, due)
    call('ZADD', place('later', site.name), text(due), entry)
    set(site, 'later', num(site, 'later') + 1)
    count('delayed', 1)
    wake(site)
end
-- Revisits that are a day or more ahead wait in slots, with all others of the site that are due in the same hours: a slot is
-- a list queue:S:R that is folded as others are, with a rank before them; it enters ranks:S when it is due. Until then
-- later:S has its rank behind a byte that begins no entry, and the site knows how many requests are in it (dR).
local SLOT_SECONDS, FIRST_RANK, SLOT = 16384, -9007199254740992, 254
local function push_slot(site, entry, due, status)
    local slot = math.ceil(due / SLOT_SECONDS)
    local rank = whole(FIRST_RANK + 2 * slot + (status == 'failed' and 1 or 0))
    local list, waiting = queue_of(site.name, rank), num(site, 'd' .. rank) + 1
    set(site, 'd' .. rank, waiting)
    if waiting == 1 then call('ZADD', place('later', site.name), slot * SLOT_SECONDS, string.char(SLOT) .. rank) end
    ask_to_fold(site.name, rank, list, call('RPUSH', list, entry), 1)
    set(site, 'later', num(site, 'later') + 1)
    count('delayed', 1)
    wake(site)
end
local function slot_rank(site, entry)
    local rank = string.byte(entry) == SLOT and string.sub(entry, 2)
    return rank and site['d' .. rank] and rank
end
local function slot_status(rank) return tonumber(rank) % 2 == 1 and 'failed' or 'done' end
local function open_slot(site, rank)
    local waiting = num(site, 'd' .. rank)
    unset(site, 'd' .. rank)
    set(site, 'later', num(site, 'later') - waiting)
    set(site, 'folded', num(site, 'folded') + waiting - call('LLEN', queue_of(site.name, rank)))
    call('ZADD', place('ranks', site.name), rank, rank)
    count('delayed', -waiting)
    count('revisits', -waiting)
    count(slot_status(rank), -waiting)
    count('queued', waiting)
    wake(site)
end
local function come_due(site)
    if num(site, 'later') == 0 then return end
    local due = call('ZRANGEBYSCORE', place('later', site.name), '-inf', text(now), 'LIMIT', 0, 512)
    -- Each is pushed to the head, so the last one goes first.
    for index = #due, 1, -1 do
        local entry = due[index]
        local rank = slot_rank(site, entry)
        call('ZREM', place('later', site.name), entry)
        if rank then
            open_slot(site, rank)
        else
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
end
local function pick_any(site, list, loose)
    local size = call('LLEN', list)
    local pick = size - math.random(1, loose)
    local entry, last = call('LINDEX', list, pick), call('RPOP', list)
    if pick < size - 1 then call('LSET', list, pick, last) end
    set(site, 'picks', num(site, 'picks') + 1)
    return { entry }
end
-- What a list gives before the next of its blocks.
local function pop_loose(site, rank, list, wanted)
    local blocks, loose = num(site, 'b' .. rank), wanted
    if blocks > 0 or job.strategy == 'random' then
        loose = num(site, 'h' .. rank)
        if from_right then loose = call('LLEN', list) - blocks - loose end
    end
    local most, part = math.min(wanted, loose), {}
    if most > 0 and job.strategy == 'random' then
        part = pick_any(site, list, loose)
    elseif most > 0 then
        part = call(from_right and 'RPOP' or 'LPOP', list, most) or {}
    end
    if #part == 0 and (most ~= 0 or blocks == 0) then damaged(list, 'is gone') end
    if blocks > 0 then
        if not from_right then set(site, 'h' .. rank, loose - #part) end
        -- Early enough for the next batch to be whole.
        if loose - #part < wanted then ask_to_unfold(site, rank, list, blocks) end
    end
    return part
end
local function pop(site, wanted)
    local taken = call('LPOP', place('front', site.name), wanted) or {}
    while #taken < wanted do
        local rank = call('ZRANGE', place('ranks', site.name), 0, 0)[1]
        if not rank then break end
        local list = queue_of(site.name, rank)
        local part = pop_loose(site, rank, list, wanted - #taken)
        if #part == 0 then break end
        for _, entry in ipairs(part) do taken[#taken + 1] = entry end
        if call('EXISTS', list) == 0 then call('ZREM', place('ranks', site.name), rank) end
    end
    return taken
end
-- Take up to `wanted` requests out of the queue of a site, or one suspect, alone.
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
-- Give up everything that waits on a site. Batches in the hands of workers stay: what comes back from them is dropped by `free`.
-- Revisits are done already, so only requests that were never finished are counted under the reason (P6).
local function close(site, reason)
    local name = site.name
    local dropped = call('LLEN', place('front', name)) + call('LLEN', place('suspects', name))
    for _, rank in ipairs(call('ZRANGE', place('ranks', name), 0, -1)) do
        local list = queue_of(name, rank)
        dropped = dropped + call('LLEN', list)
        call('DEL', list)
        set_blocks(site, rank, 0)
    end
    dropped = dropped + num(site, 'folded')
    unset(site, 'folded')
    local revisits = 0
    for _, entry in ipairs(call('ZRANGE', place('later', name), 0, -1)) do
        local rank = slot_rank(site, entry)
        if rank then
            revisits = revisits + num(site, 'd' .. rank)
            call('DEL', queue_of(name, rank))
            unset(site, 'd' .. rank)
            set_blocks(site, rank, 0)
        elseif (fields_of(entry)[AGAIN] or '') ~= '' then
            revisits = revisits + 1
        end
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

