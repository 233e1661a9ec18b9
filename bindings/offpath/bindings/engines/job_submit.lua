-- Slurm's job_submit plug-in for offpath: holds each job that a user submits, until offpath has placed it.
-- Install it as job_submit.lua beside slurm.conf, with JobSubmitPlugins=lua; docs/engines.md.

-- The user ids that offpath's controller may have.
local CONTROLLERS = { [0] = true }

local MARK = "offpath:"

local function is_marked(text)
    return text ~= nil and string.sub(text, 1, #MARK) == MARK
end

local function refuse(reason)
    slurm.log_user("offpath: " .. reason)
    return slurm.ERROR
end

local function uuid()
    local file = io.open("/proc/sys/kernel/random/uuid")
    local text = file and file:read("*l")
    if file then file:close() end
    return text
end

function slurm_job_submit(job_desc, part_list, submit_uid)
    local comment = job_desc.comment
    if comment ~= nil and string.find(comment, "%c") then
        return refuse("the comment has control characters")
    end
    if is_marked(comment) then
        if CONTROLLERS[submit_uid] then return slurm.SUCCESS end
        return refuse("comments that begin with " .. MARK .. " are reserved")
    end
    if job_desc.script == nil then
        return refuse("only batch jobs are placed: use sbatch")
    end
    if job_desc.array_inx ~= nil then
        return refuse("arrays are not placed: submit the jobs one by one")
    end
    local id = uuid()
    if id == nil then return refuse("no identity can be made for this job") end
    -- An id of Slurm can be lost and used again; this identity cannot.
    job_desc.admin_comment = MARK .. "held:" .. id
    job_desc.priority = 0
    return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    if CONTROLLERS[modify_uid] then return slurm.SUCCESS end
    if is_marked(job_desc.comment) then
        return refuse("comments that begin with " .. MARK .. " are reserved")
    end
    if is_marked(job_rec.admin_comment) and job_desc.req_nodes ~= nil then
        return refuse("the nodes of a placed job cannot be changed")
    end
    return slurm.SUCCESS
end

return slurm.SUCCESS
