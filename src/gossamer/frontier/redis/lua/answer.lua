-- Run the operation, then write what it has changed. Counters and fields of sites are gathered while it runs and written once,
-- which is cheaper and keeps the number of commands of a call independent of the number of links. The last time and the last
-- token are stored with every change: within a job time never steps back and tokens only grow (P4, P5), also where the
-- clock of the server does step back.
local answer = operations[operation]()
enter_ready()
local reads = { counts = true, unknown = true, workers = true, waiting = true, slot = true, parcels = true, where = true }
if not reads[operation] and not MOVES[operation] then
    if admitted > 0 then count('news', 1) end
    for name, by in pairs(counted) do
        local value = call('HINCRBY', job_key, name, by)
        if name == 'news' then call('PUBLISH', prefix .. 'news', value) end
    end
    local changed = { 'now', text(now) }
    if job.token then changed[3], changed[4] = 'token', job.token end
    if skew ~= number('skew') then
        changed[#changed + 1] = 'skew'
        changed[#changed + 1] = text(skew)
    end
    call('HSET', job_key, unpack(changed))
    for name, site in pairs(sites) do
        local fields = {}
        for field, value in pairs(site.changed) do
            fields[#fields + 1] = field
            fields[#fields + 1] = value
        end
        if #fields > 0 then call('HSET', place('site', name), unpack(fields)) end
    end
end
return answer
