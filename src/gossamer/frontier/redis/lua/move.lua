
-- Moving a shard to another server: frontier/redis/move.py has the protocol. `nonce` names one attempt; each step of it passes
-- only while the attempt is the last one, and while the server has not restarted since it began. A step that does not pass
-- changes nothing and returns 0 or false; the mover or client then looks again. No step trusts what its caller has read
-- before: the conditions are checked here, in the script that writes.
--
-- The record of a shard is in one of these states: live (it has `state`, no `moved`, no `arriving`), kept (`state` and `moved`),
-- arriving (`arriving`, and `state` once the record has come), buried (`moved` without `state`), or missing.

local function is_kept() return job.state ~= nil end
local function is_live() return is_kept() and not job.moved and not job.arriving end
local function same_run() return (run_now() or '') == given.run end
local function unset_fields(...) call('HDEL', job_key, ...) end
local function wake_all() call('PUBLISH', prefix .. 'news', call('HINCRBY', job_key, 'news', 1)) end

-- At the source ------------------------------------------------------------------------------------------------------

-- Calls go on. From now on, after a restart this server does not serve the shard until somebody has asked the target.
function operations.announce()
    notice_restart()
    if given.target == '' then
        unset_fields('leaving')
    else
        call('HSET', job_key, 'leaving', given.target)
    end
    return 1
end
-- From here to `leave` all calls are refused, as long as the claim is renewed. Another attempt takes over only when the claim
-- has expired. A server that restarted since the announcement was made must be confirmed first.
function operations.depart()
    if not is_live() or job.leaving ~= given.target then return false end
    local second = tonumber(call('TIME')[1])
    if job.moving and job.departed ~= given.nonce and second < tonumber(job.moving_until or '0') then return false end
    local run = run_now() or ''
    if job.run and run ~= '' and job.run ~= run then return false end
    call('HSET', job_key, 'moving', given.target, 'departed', given.nonce, 'moving_until', second + given.seconds)
    return { run, number('generation') }
end
-- False once the claim has expired and a call has passed: that call may have changed what was copied before.
local function is_ours() return job.moving == given.target and call('HGET', job_key, 'departed') == given.nonce end
function operations.renew()
    if not is_ours() then return 0 end
    call('HSET', job_key, 'moving_until', tonumber(call('TIME')[1]) + given.seconds)
    return 1
end
-- Give up this attempt: calls go on here.
function operations.stay()
    if not is_ours() then return 0 end
    unset_fields('moving', 'moving_until', 'departed')
    wake_all()
    return 1
end
-- The decision: from here on the shard is at the target. All data are kept until they are buried.
function operations.leave()
    if not is_ours() or not is_live() or not same_run() then return 0 end
    call('HSET', job_key, 'moved', given.target, 'nonce', given.nonce)
    unset_fields('moving', 'moving_until', 'departed')
    wake_all()
    return 1
end
-- After a restart that nobody has settled yet, in the same run in which the caller decided.
local function is_in_doubt() return is_live() and job.leaving == given.target and same_run() and job.run ~= given.run end
-- The target has the shard, in a higher generation: this server has forgotten `leave`.
function operations.follow()
    if not is_in_doubt() or number('generation') >= tonumber(given.generation) then return 0 end
    call('HSET', job_key, 'moved', given.target, 'nonce', given.nonce)
    unset_fields('moving', 'moving_until', 'departed')
    wake_all()
    return 1
end
-- The target does not have it, and no closed copy there can be opened any more. `notice_restart` lets all lanes rest.
function operations.confirm()
    if not is_in_doubt() then return 0 end
    unset_fields('moving', 'moving_until', 'departed')
    notice_restart()
    wake_all()
    return 1
end
-- The target has lost the shard, which is still here. Workers may hold leases of the lost copy, so lanes rest as after a
-- restart. The generation rises by two, above that of any copy which was made from this one.
function operations.reclaim()
    if not is_kept() or job.moved ~= given.target or job.nonce ~= given.nonce then return 0 end
    unset_fields('moved', 'nonce')
    count_restart()
    job.run = nil
    notice_restart()
    call('HSET', job_key, 'generation', whole(number('generation') + 2))
    wake_all()
    return 1
end
-- The target cannot lose it any more: replace the record by one that names the target. `clear` then deletes the data.
function operations.bury()
    if not is_kept() or job.moved ~= given.target or job.nonce ~= given.nonce then return 0 end
    local left = { 'format', job.format, 'moved', job.moved, 'nonce', job.nonce, 'generation', whole(number('generation')), 'news', whole(number('news')) }
    call('DEL', job_key)
    call('HSET', job_key, unpack(left))
    return 1
end
-- Delete keys of a shard that is buried here, or leftovers of an earlier copy before a new one arrives.
function operations.clear()
    local is_buried = job.moved and not is_kept()
    if not is_buried and not (job.arriving and job.nonce == given.nonce) then return 0 end
    for at, key in ipairs(given.names) do call('UNLINK', key) end
    return 1
end

-- At the target ------------------------------------------------------------------------------------------------------

-- Start an attempt: replace whatever record is here, unless it is a live one.
function operations.prepare()
    if is_live() then return false end
    call('DEL', job_key)
    call('HSET', job_key, 'format', FORMAT, 'arriving', given.source, 'nonce', given.nonce, 'generation', given.generation)
    return run_now() or ''
end
-- After a restart the target may lack keys that have landed: only a new attempt brings all of them.
local function is_awaited() return job.arriving and job.nonce == given.nonce and same_run() end
function operations.land()
    if not is_awaited() then return 0 end
    local from = 1
    for at, key in ipairs(given.names) do
        call('RESTORE', key, 0, string.sub(entries, from, given.ends[at]), 'REPLACE')
        from = given.ends[at] + 1
    end
    return 1
end
-- The record comes last: a server that forgets has all of the shard, or no record. Fields of the source's own state are
-- removed, and the run of this server is stored, so that the move itself does not count as a restart.
function operations.arrive()
    if not is_awaited() or is_kept() then return 0 end
    call('RESTORE', job_key, 0, entries, 'REPLACE')
    unset_fields('moved', 'moving', 'moving_until', 'departed', 'leaving', 'run')
    call('HSET', job_key, 'arriving', job.arriving, 'nonce', job.nonce, 'generation', job.generation)
    if given.run ~= '' then call('HSET', job_key, 'run', given.run) end
    return 1
end
-- The source has left, and named this nonce: open the copy. Repeating it is harmless.
function operations.settle()
    if not is_kept() or job.nonce ~= given.nonce then return 0 end
    unset_fields('arriving')
    wake_all()
    return 1
end
-- Delete the record of a copy that is not open, so that it never will be. An open copy is left alone.
function operations.kill()
    if not job.arriving or job.nonce ~= given.nonce then return 0 end
    call('DEL', job_key)
    return 1
end
