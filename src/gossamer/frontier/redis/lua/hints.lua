-- Hints ------------------------------------------------------------------------------------------------------------

-- What waits on a site for its time: the slots of far revisits, and all other entries, with their times. Writes nothing.
function operations.waiting()
    local site, slots, entries = load_site(given.site), {}, {}
    if num(site, 'later') > 0 and not site.closed then
        local found = call('ZRANGE', place('later', site.name), 0, -1, 'WITHSCORES')
        for index = 1, #found, 2 do
            local rank = slot_rank(site, found[index])
            local kind = rank and slots or entries
            kind[#kind + 1] = { rank or found[index], found[index + 1] }
        end
    end
    return { text(now), slots, entries }
end

-- The elements of a slot. Writes nothing.
function operations.slot() return call('LRANGE', queue_of(given.site, given.rank), 0, -1) end

-- Remove entries from a slot, from a block in it, or from later:S. False if the element has changed since the client read it: the
-- visit then comes at the time that was planned.
local function withdraw(site, move)
    local rank, left = move.rank, 0
    if rank == '' then return call('ZREM', place('later', site.name), move.old) == 1 end
    if not site['d' .. rank] then return false end
    local list = queue_of(site.name, rank)
    if string.byte(move.old) == 255 then
        local block = call('LINDEX', list, move.at)
        if not block or string.sub(block, 1, BLOCK_ID) ~= move.old then return false end
        if move.new ~= '' then
            call('LSET', list, move.at, move.new)
        else
            call('LREM', list, 1, block)
            set_blocks(site, rank, num(site, 'b' .. rank) - 1, num(site, 'h' .. rank))
        end
    elseif call('LREM', list, 1, move.old) == 0 then
        return false
    end
    left = num(site, 'd' .. rank) - #move.entries
    if left > 0 then
        set(site, 'd' .. rank, left)
    else
        unset(site, 'd' .. rank)
        call('ZREM', place('later', site.name), string.char(SLOT) .. rank)
    end
    return true
end
-- Bring visits forward: each entry becomes due in the given number of seconds.
function operations.hasten()
    needs_memory()
    local site, moved = load_site(given.site), 0
    if site.closed then return 0 end
    for _, move in ipairs(given.moves) do
        if withdraw(site, move) then
            set(site, 'later', num(site, 'later') - #move.entries)
            count('delayed', -#move.entries)
            for index, entry in ipairs(move.entries) do
                if move.rank ~= '' then
                    local fields = fields_of(entry)
                    fields[AGAIN] = slot_status(move.rank)
                    entry = with_fields(entry, fields)
                end
                push_later(site, entry, now + tonumber(move.waits[index]))
            end
            moved = moved + #move.entries
        end
    end
    if moved > 0 then count('news', 1) end
    return moved
end

