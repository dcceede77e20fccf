-- Folding ----------------------------------------------------------------------------------------------------------

local MOST_BYTES = 1048576

local function keep_first(list, size)
    if size > 0 then call('LTRIM', list, 0, size - 1) else call('DEL', list) end
end
local function push_left(list, values)
    local reversed = {}
    for index = #values, 1, -1 do reversed[#reversed + 1] = values[index] end
    with_all('LPUSH', list, reversed)
end

-- Replace entries by the blocks that a client made of them, if they are all still there. They are if the last of them is in its
-- place: only the ends of a list change, except for random picks, which are counted.
local function fold(site, rank, wanted)
    local list = queue_of(site.name, rank)
    local from = behind_blocks(site, rank, 0)
    local last = from + wanted.length - 1
    if num(site, 'picks') ~= wanted.picks or call('LINDEX', list, last) ~= wanted.last then return end
    local rest, blocks = call('LRANGE', list, last + 1, -1), num(site, 'b' .. rank)
    keep_first(list, from)
    with_all('RPUSH', list, wanted.blocks)
    with_all('RPUSH', list, rest)
    set_blocks(site, rank, blocks + #wanted.blocks, from - blocks)
    if not site['d' .. rank] then set(site, 'folded', num(site, 'folded') + wanted.length - #wanted.blocks) end
end
-- The entries of a list to fold next, the number of entries for a block, and the number of picks so far.
local function foldable(site, rank)
    local list = queue_of(site.name, rank)
    local from, size = behind_blocks(site, rank, call('LLEN', list))
    if FOLD == 0 or size < FOLD then return {} end
    local run, bytes = call('LRANGE', list, from, from + math.min(math.floor(size / FOLD), BLOCKS) * FOLD - 1), 0
    for index = 1, #run do
        bytes = bytes + #run[index]
        if bytes > MOST_BYTES and index > 1 then run[index] = nil end
    end
    return { run, FOLD, num(site, 'picks') }
end
function operations.fold()
    -- Starts with a deletion, so that it also runs on a full server: folding frees more memory than it needs.
    call('HDEL', job_key, '')
    local found = {}
    for index, wanted in ipairs(given.lists) do
        local site = load_site(wanted.site)
        if wanted.blocks then fold(site, wanted.rank, wanted) end
        found[index] = foldable(site, wanted.rank)
    end
    return found
end

-- Replace a block by its entries, if it is still the next one of its list. Without entries the block is unreadable: it is
-- removed, and its requests count as parked, so that the job can end.
local function unfold(site, rank, wanted)
    local list, blocks, head = queue_of(site.name, rank), num(site, 'b' .. rank), num(site, 'h' .. rank)
    local last, entries = head + blocks - 1, wanted.entries
    local at = not from_right and head or job.strategy == 'dfs' and last or wanted.at
    local block = head <= at and at <= last and call('LINDEX', list, at)
    if not block or string.sub(block, 1, BLOCK_ID) ~= wanted.id then return end
    if from_right then
        if at < last then call('LSET', list, at, call('LINDEX', list, last)) end
        local rest = call('LRANGE', list, last + 1, -1)
        keep_first(list, last)
        with_all('RPUSH', list, entries)
        with_all('RPUSH', list, rest)
    else
        local first = head > 0 and call('LRANGE', list, 0, head - 1) or {}
        call('LTRIM', list, head + 1, -1)
        push_left(list, entries)
        push_left(list, first)
        head = head + #entries
    end
    local _, high, middle, low = string.byte(block, 1, 4)
    local size = high * 65536 + middle * 256 + low
    set_blocks(site, rank, blocks - 1, head)
    set(site, 'folded', num(site, 'folded') - size + 1)
    if #entries == 0 then
        count('queued', -size)
        count('parked', size)
        count('news', 1)
        if call('EXISTS', list) == 0 then call('ZREM', place('ranks', site.name), rank) end
        wake(site)
    end
end
function operations.unfold()
    needs_memory()
    for _, wanted in ipairs(given.blocks) do unfold(load_site(wanted.site), wanted.rank, wanted) end
end

