-- Repair: pages whose records are lost ------------------------------------------------------------------------------

-- A call that is repeated because its answer was lost takes effect once: the record stores its nonce.
local function was_done() return given.nonce and call('HGET', job_key, 'repair') == given.nonce end
local function note_done() call('HSET', job_key, 'repair', given.nonce) end

local function forget(index)
    if call('SREM', bucket_of(digits[index]), keys[index]) == 0 then return false end
    known = known - 1
    return true
end
-- Lower the counts of stored pages. Whether a lost page was done or failed is not stored, so `done` is lowered first.
local function take_off(pages)
    count('stored', -pages)
    local done = math.min(pages, total('done'))
    count('done', -done)
    count('failed', -math.min(pages - done, total('failed')))
end

-- Queue known pages again. The first `stored` of them no longer count as stored.
function operations.requeue()
    needs_memory()
    if was_done() then return { 0, {} } end
    local queued, stored = 0, 0
    for index = 1, #keys do
        if forget(index) then
            queued = queued + 1
            if index <= given.stored then
                stored = stored + 1
                local site = load_site(given.names[given.groups[2 * group_of[index] - 1]])
                set(site, 'stored', math.max(0, num(site, 'stored') - 1))
                if site.closed == 'budget' then unset(site, 'closed') end
            end
        end
    end
    take_off(stored)
    admit(#keys)
    enqueue_gathered()
    count('news', 1)
    note_done()
    return { queued, to_fold }
end

-- Forget keys: their pages are new when they are found again.
function operations.forget()
    needs_no_memory()
    if was_done() then return 0 end
    local before = known
    for index = 1, #keys do forget(index) end
    count('known', known - before)
    note_done()
    return before - known
end

function operations.write_off()
    needs_no_memory()
    if was_done() then return 0 end
    take_off(given.pages)
    count('news', 1)
    note_done()
    return given.pages
end

