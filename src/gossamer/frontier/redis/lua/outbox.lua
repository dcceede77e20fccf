-- The outbox: parcels of links that other servers have acknowledged. frontier/outbox.py explains why, and has the rule of
-- aging (`Aging.swept`), which `sweep` repeats here: both must change together.
--
-- A box is named by the run and the server that acknowledged its parcels. Its record is text: `first` is the number of
-- the oldest parcel, `marked` the number behind the last parcel that the present count covers, `lived` the seconds counted
-- since, `at` the time of the last sweep. Several workers may sweep one outbox: time is the store's, and a second sweep a
-- moment later adds that moment only.

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
-- Runs in the script that completes the page (P3). The first parcel of a new box has a number that no earlier box of the same
-- name ever had. So a `replace` that was computed for an earlier one, which has been emptied since, does not match.
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
-- A box without parcels has no record. The job may wait for nothing but its outboxes (P6): wake the workers at the last one.
local function drop(box, known, parcels)
    call('LTRIM', parcels_of(box), parcels, -1)
    known.first = known.first + parcels
    count('outbox', -parcels)
    if call('EXISTS', parcels_of(box)) == 0 then
        call('HDEL', prefix .. 'boxes', box)
        if total('outbox') == 0 then count('news', 1) end
    else
        write_box(box, known)
    end
end

-- Age the boxes of the present runs, drop what those servers cannot forget any more, and list what is left. A box of an
-- earlier run does not age; the client delivers its parcels again and then replaces them.
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
-- The oldest parcels, if the box still begins where the caller saw it begin.
function operations.parcels()
    local known = read_box(given.box)
    if not known or known.first ~= given.first then return {} end
    return call('LRANGE', parcels_of(given.box), 0, given.limit - 1)
end
-- Remove parcels that were delivered again, and file them under the run that has them now, in one script: at any time the
-- links are in one of the two boxes. If two workers deliver the same parcels, the second finds another `first`.
function operations.replace()
    if #given.parcels > 0 then needs_memory() else needs_no_memory() end
    local known = read_box(given.box)
    if not known or known.first ~= given.first then return 0 end
    drop(given.box, known, given.count)
    post(given.parcels)
    return 1
end
