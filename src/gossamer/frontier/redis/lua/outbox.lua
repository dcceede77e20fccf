-- The outbox: parcels of links that other servers have acknowledged. outbox.py says what it is for, and has the rule of aging.

local function box_of(run, server) return run .. ' ' .. server end
local function parcels_of(box) return prefix .. 'outbox:' .. box end
local function read_box(box)
    local found = call('HGET', prefix .. 'boxes', box)
    if not found then return nil end
    local first, marked, lived, at = string.match(found, '^(%S+) (%S+) (%S+) (%S+)$')
    return { first = tonumber(first), marked = tonumber(marked), lived = tonumber(lived), at = tonumber(at) }
end
local function write_box(box, known)
    call('HSET', prefix .. 'boxes', box, table.concat({ whole(known.first), whole(known.marked), text(known.lived), text(known.at) }, ' '))
end
-- The first parcel of a new box has a number that no box of this shard ever had: see `replace`.
local function post(parcels)
    for _, parcel in ipairs(parcels or {}) do
        local box = box_of(parcel[2], parcel[1])
        if call('HEXISTS', prefix .. 'boxes', box) == 0 then
            write_box(box, { first = total('posted'), marked = 0, lived = 0, at = now })
        end
        call('RPUSH', parcels_of(box), parcel[3])
        count('outbox', 1)
        count('posted', 1)
    end
end
local function drop(box, known, parcels)
    call('LTRIM', parcels_of(box), parcels, -1)
    known.first = known.first + parcels
    count('outbox', -parcels)
    if call('EXISTS', parcels_of(box)) == 0 then
        call('HDEL', prefix .. 'boxes', box)
        -- That may have been all that the job waited for.
        if total('outbox') == 0 then count('news', 1) end
    else
        write_box(box, known)
    end
end

function operations.sweep()
    needs_no_memory()
    local left = {}
    for _, box in ipairs(call('HKEYS', prefix .. 'boxes')) do
        local known, size = read_box(box), call('LLEN', parcels_of(box))
        local run, server = string.match(box, '^(%S+) (.*)$')
        if given.runs[server] == run then
            local last, done = known.first + size, 0
            if known.marked <= known.first then
                known.marked, known.lived = last, 0
            else
                known.lived = known.lived + math.min(math.max(now - known.at, 0), given.step)
                if known.lived >= given.seconds then
                    done, known.marked, known.lived = known.marked - known.first, last, 0
                end
            end
            known.at = now
            drop(box, known, done)
            size = size - done
        end
        if size > 0 then left[#left + 1] = { server, run, known.first, size } end
    end
    return left
end
function operations.parcels()
    local known = read_box(given.box)
    if not known or known.first ~= given.first then return {} end
    return call('LRANGE', parcels_of(given.box), 0, given.limit - 1)
end
function operations.replace()
    if #given.parcels > 0 then needs_memory() else needs_no_memory() end
    local known = read_box(given.box)
    if not known or known.first ~= given.first then return 0 end
    drop(given.box, known, given.count)
    post(given.parcels)
    return 1
end
