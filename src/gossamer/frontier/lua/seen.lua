-- Known keys -----------------------------------------------------------------------------------------------------

local seen_level, seen_split = number('seen_level'), number('seen_split')
local seen_size = 2 ^ seen_level

-- Linear hashing: the buckets are split one at a time, in turn.
local function split_seen()
    local from, into = prefix .. 'seen:' .. whole(seen_split), prefix .. 'seen:' .. whole(seen_split + seen_size)
    local bits = 2 * seen_size
    local moved, known = {}, call('SMEMBERS', from)
    for _, key in ipairs(known) do
        if string.sub(key, -9) % bits ~= seen_split then moved[#moved + 1] = key end
    end
    if #moved > 0 then
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
-- The last nine digits decide: all of them are more than a number here holds.
local seen = prefix .. 'seen:'
local function bucket_of(digits)
    local bucket = digits % seen_size
    if bucket < seen_split then bucket = digits % (2 * seen_size) end
    return string.format('%s%d', seen, bucket)
end

-- Which of these keys, by their place, nobody knows. Writes nothing.
function operations.unknown()
    local found = {}
    local digits = given.digits
    for index, key in ipairs(given.keys) do
        if call('SISMEMBER', bucket_of(digits[index]), key) == 0 then found[#found + 1] = index end
    end
    return found
end

-- Takes the next links: there are two numbers for each run of them, that of its group, which has one site and one rank, and
-- its length. The new ones are gathered by group: a push for each link is half of what a call costs.
local digits, taken, known, gathered = given.digits, 0, number('known'), {}
local function admit(runs)
    for index = 1, #runs, 2 do
        local group = runs[index]
        local fresh = gathered[group]
        if not fresh then
            fresh = {}
            gathered[group] = fresh
        end
        for at = taken + 1, taken + runs[index + 1] do
            local key = links[2 * at - 1]
            if call('SADD', bucket_of(digits[at]), key) == 1 then
                fresh[#fresh + 1] = links[2 * at]
                known = known + 1
                if known > SEEN_LOAD * (seen_size + seen_split) then split_seen() end
            end
        end
        taken = taken + runs[index + 1]
    end
end
local function pass_over(runs)
    for index = 2, #runs, 2 do taken = taken + runs[index] end
end
local function enqueue_gathered()
    for group, fresh in pairs(gathered) do
        if #fresh > 0 then enqueue(given.names[given.groups[2 * group - 1]], given.groups[2 * group], fresh) end
    end
    admitted = known - number('known')
    count('known', admitted)
end

function operations.add()
    needs_memory()
    admit(given.runs)
    enqueue_gathered()
    return { admitted, to_fold }
end

