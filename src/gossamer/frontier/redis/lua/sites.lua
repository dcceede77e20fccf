-- Sites ------------------------------------------------------------------------------------------------------------

-- A site is read once in a call, changed in memory, and written by answer.lua. `set` remembers what to write; `unset` deletes
-- fields at once.
local sites = {}
local function load_site(name)
    local site = sites[name]
    if site then return site end
    site = { name = name, changed = {} }
    local flat = call('HGETALL', place('site', name))
    for i = 1, #flat, 2 do site[flat[i]] = flat[i + 1] end
    sites[name] = site
    return site
end
local function must_be_there(site)
    if not site.allowed then damaged(place('site', site.name), 'is gone') end
    return site
end
local function set(site, field, value)
    site[field] = value
    site.changed[field] = value
end
local function unset(site, ...)
    local there = false
    for _, field in ipairs({ ... }) do
        there = there or site[field] ~= nil
        site[field], site.changed[field] = nil, nil
    end
    if there then call('HDEL', place('site', site.name), ...) end
end
local function num(site, field) return tonumber(site[field] or '0') end

local function lanes_of(site) return math.max(1, num(site, 'lanes')) end
local function delay_of(site) return math.max(tonumber(site.own or job.delay), num(site, 'asked')) end
local function lane_delay(site) return delay_of(site) * lanes_of(site) end

local function has_queued(site)
    return call('EXISTS', place('ranks', site.name), place('front', site.name), place('suspects', site.name)) > 0
end
-- When a lane can be leased; nil if nothing waits. For a leased lane this is the end of the lease plus one delay: its holder may
-- send its last request just before the lease ends (P5), and from then on the lane may be taken from it (P9).
local function ready_at(site, lane)
    if num(site, 't' .. lane) ~= 0 then return num(site, 'e' .. lane) + lane_delay(site) end
    local allowed = math.max(num(site, 'n' .. lane), num(site, 'hold'))
    if has_queued(site) then return allowed end
    if num(site, 'later') > 0 then
        local first = call('ZRANGE', place('later', site.name), 0, 0, 'WITHSCORES')
        if first[2] then return math.max(allowed, tonumber(first[2])) end
    end
    return nil
end
-- Sites whose lanes may be ready at another time than before. Their entries in the ready sets are computed at the end of the
-- call; every change of a lane, a hold, or a queue that was empty must wake its site, or nobody would look at it again.
local woken = {}
local function wake(site) woken[site.name] = site end
local function ready_set(site) return prefix .. 'ready:' .. (site.region or '') end
local function enter_ready()
    for name, site in pairs(woken) do
        local set_name = ready_set(site)
        for lane = 0, lanes_of(site) - 1 do
            local at = ready_at(site, lane)
            if at then
                call('ZADD', set_name, text(at), member(name, lane))
            else
                call('ZREM', set_name, member(name, lane))
            end
        end
        if site.changed.later then
            local first = call('ZRANGE', place('later', name), 0, 0, 'WITHSCORES')
            if first[2] then
                call('ZADD', prefix .. 'dues', first[2], name)
            else
                call('ZREM', prefix .. 'dues', name)
            end
        end
    end
end
local function move_to(site, region)
    if (site.region or '') == region then return end
    for lane = 0, lanes_of(site) - 1 do call('ZREM', ready_set(site), member(site.name, lane)) end
    set(site, 'region', region)
    call('SADD', prefix .. 'regions', region)
    wake(site)
end
local function all_regions()
    local regions = call('SMEMBERS', prefix .. 'regions')
    for _, region in ipairs(regions) do
        if region == '' then return regions end
    end
    regions[#regions + 1] = ''
    return regions
end
-- Open the allowed lanes, once robots.txt is known. They start one delay apart, so that no two are ready at the same moment.
local function open_lanes(site, from)
    local wanted, have = num(site, 'allowed'), lanes_of(site)
    for lane = have, wanted - 1 do
        set(site, 'n' .. lane, text(from + delay_of(site) * lane))
    end
    if wanted > have then set(site, 'lanes', wanted) end
end
local function new_site(name)
    local site = load_site(name)
    if not site.allowed then
        local own = given.own and given.own[name] or {}
        set(site, 'allowed', own.lanes or number('lanes'))
        if own.delay then set(site, 'own', text(own.delay)) end
        set(site, 'lanes', 1)
        set(site, 'n0', text(now))
        if own.region then move_to(site, own.region) end
        local budget = own.budget or job.budget
        if budget and budget ~= '' then set(site, 'budget', budget) end
        if job.robots ~= '1' then open_lanes(site, now) end
        count('sites', 1)
    end
    return site
end
local function room_on(site)
    if not site.budget then return 9007199254740992 end
    return num(site, 'budget') - num(site, 'stored') - num(site, 'leased')
end
local function closed_counter(reason)
    return reason == 'budget' and 'skipped' or 'failed'
end

