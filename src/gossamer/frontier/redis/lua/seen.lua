-- Known keys -----------------------------------------------------------------------------------------------------
--
-- The seen set is many small sets of integers, because Redis stores a set below 512 integers as a packed array, at a fraction
-- of the memory. Linear hashing lets it grow in small steps, one bucket at a time, and never has to move all keys.
-- SADD decides whether a link is new, in the script that queues it (P1).

local seen_level, seen_split = number('seen_level'), number('seen_split')
local seen_size = 2 ^ seen_level
local sub, format = string.sub, string.format

-- Split the bucket whose turn it is: half of its keys move to a new one.
local function split_seen()
    local from, into = prefix .. 'seen:' .. whole(seen_split), prefix .. 'seen:' .. whole(seen_split + seen_size)
    local bits = 2 * seen_size
    local moved, known, size = {}, call('SMEMBERS', from), 0
    for index = 1, #known do
        local key = known[index]
        if sub(key, -9) % bits ~= seen_split then
            size = size + 1
            moved[size] = key
        end
    end
    if size > 0 then
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
-- The last nine digits choose the bucket: a Lua number cannot hold a whole key.
local seen = prefix .. 'seen:'
local function bucket_of(digits)
    local bucket = digits % seen_size
    if bucket < seen_split then bucket = digits % (2 * seen_size) end
    return format('%s%d', seen, bucket)
end

-- The positions of those keys that are unknown. Writes nothing.
function operations.unknown()
    local found = {}
    local digits = given.digits
    for index, key in ipairs(given.keys) do
        if call('SISMEMBER', bucket_of(digits[index]), key) == 0 then found[#found + 1] = index end
    end
    return found
end

-- Admit the next links of the call, in their order. New ones are gathered by group, which is one site and one rank, and pushed
-- together at the end: a push for each link would be half of the cost of a call.
local keys, digits, ends, group_of = given.keys, given.digits, given.ends, given.group_of
local taken, known, gathered = 0, number('known'), {}
local function admit(links)
    for at = taken + 1, taken + links do
        if call('SADD', bucket_of(digits[at]), keys[at]) == 1 then
            local group = group_of[at]
            local fresh = gathered[group]
            if not fresh then
                fresh = {}
                gathered[group] = fresh
            end
            fresh[#fresh + 1] = sub(entries, (ends[at - 1] or 0) + 1, ends[at])
            known = known + 1
            if known > SEEN_LOAD * (seen_size + seen_split) then split_seen() end
        end
    end
    taken = taken + links
end
-- Skip the links of an outcome that does not count.
local function pass_over(links) taken = taken + links end
local function enqueue_gathered()
    for group, fresh in pairs(gathered) do
        enqueue(given.names[given.groups[2 * group - 1]], given.groups[2 * group], fresh)
    end
    admitted = known - number('known')
    count('known', admitted)
end

function operations.add()
    needs_memory()
    admit(given.links)
    enqueue_gathered()
    return { admitted, to_fold, job.run or 'unknown' }
end

