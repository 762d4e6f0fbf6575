// SPDX-License-Identifier: Apache-2.0
// What the program waited for; the plan and its candidates; blocks, drivers, errors; the foot.

// ---- waits -------------------------------------------------------------------------------------
if (history) {
    const waits = history.stalls.tensors;
    const others = history.stalls.others;
    const causes = CAUSES.map(
        (cause) => [cause, sum(waits, (entry) => entry[cause + '_ns']) + others[cause + '_ns']]);
    const total = sum(causes, (entry) => entry[1]);
    const made =
        section('What the program waited for', total === 0 ? 'The program never waited.' : null);
    if (total > 0) {
        const lead = element(
            'p', null, 'Since the run began its threads waited ', value(total, time(total)), ' in ',
            value(
                sum(waits, (entry) => entry.waits) + others.waits,
                count(sum(waits, (entry) => entry.waits) + others.waits)),
            ' waits, outside of steps included. A fetch of several tensors is put down to the ' +
            'first of them; the wait for the norm of all gradients to none.');
        made.append(
            lead, element('h3', null, 'By cause'),
            chart(
                'Waiting by cause',
                causes.map(([cause, ns]) => `${CAUSE_WORDS[cause]}: ${time(ns)}`).join('; '),
                (picture, width) => sidewaysBars(
                    picture, width,
                    causes.filter((entry) => entry[1] > 0).map(([cause, ns]) => ({
                                                                   name: CAUSE_WORDS[cause],
                                                                   parts: [[STALL_KIND[cause], ns]]
                                                               })),
                    time),
                'Time of all threads together, by cause')
                .figure,
            behind(table(
                'Waits by cause', [['cause'], ['time', 'n'], ['of all', 'n']],
                causes.map(([cause, ns]) => [CAUSE_WORDS[cause], cellTime(ns), {
                               value: ns / total,
                               text: percent(ns / total)
                           }]))));
        const top = waits.slice(0, TOP);
        const parts = (entry) => CAUSES.map((cause) => [STALL_KIND[cause], entry[cause + '_ns']]);
        made.append(
            element('h3', null, `By tensor, the ${top.length} that cost most`),
            chart(
                'Waiting by tensor',
                top.map((entry) => `${tensorWords(entry.tensor)}: ${time(entry.total_ns)}`)
                    .join('; '),
                (picture, width) => sidewaysBars(
                    picture, width,
                    top.map((entry) => ({name: tensorWords(entry.tensor), parts: parts(entry)})),
                    time),
                'Time of all threads together, by tensor')
                .figure,
            legend(causes.filter((entry) => entry[1] > 0)
                       .map(([cause]) => [STALL_KIND[cause], CAUSE_WORDS[cause]])),
            behind(table(
                'Waits by tensor',
                [
                    ['tensor'], ['waits', 'n'], ['time', 'n'],
                    ...CAUSES.map((cause) => [CAUSE_WORDS[cause], 'n'])
                ],
                [
                    ...waits.map(
                        (entry) =>
                            [tensorWords(entry.tensor), cellCount(entry.waits),
                             cellTime(entry.total_ns),
                             ...CAUSES.map((cause) => cellTime(entry[cause + '_ns']))]),
                    ...(others.waits > 0 ? [[
                        'all others', cellCount(others.waits), cellTime(others.total_ns),
                        ...CAUSES.map((cause) => cellTime(others[cause + '_ns']))
                    ]] :
                                           [])
                ])));
    }
}

// ---- plan --------------------------------------------------------------------------------------
const ROLES = ['other', 'param', 'grad', 'optimizer_state', 'activation', 'cache'];
// What a policy does, by the first words of its name, and what its number is.
const POLICIES = [
    ['last use', () => 'what was used longest ago leaves first'],
    ['next use, write-back', (n) => 'what is used again last leaves first; what would have to be ' +
        `written back counts as used ${n} of a step sooner`],
    ['next use', () => 'what is used again last leaves first'],
    ['pin role', (n) => `tensors of the role ${ROLES[n] || n} stay, the others by next use`],
    ['zig-zag', () => 'what a step uses first stays from the step before'],
    ['often used, fading', (n) => 'what was used least often leaves first; a use counts ' +
        `for less with each step, by ${n}`],
    ['kept, way', (n) => 'chosen tensors stay from one use to the next, those that save most for ' +
        `their room first, by measure ${n} of several; the others by next use`]
];
function policyWords(name) {
    const known = POLICIES.find((entry) => name.startsWith(entry[0]));
    return known ? known[1](name.slice(known[0].length).trim()) : '';
}
// Those of one time beside each other: others computed longer, or had slower links.
function replayed(title, list, words, bound) {
    const caption = 'Replayed time of a step, by policy' + words;
    return chart(
        title, list.map((entry) => `${entry.policy}: ${time(entry.step_ns)}`).join('; '),
        (picture, width) => sidewaysBars(
            picture, width, list.map((entry) => ({
                                         name: entry.label,
                                         parts: [
                                             ['compute', Math.max(0, entry.step_ns - entry.stall_ns)],
                                             ['waiting', Math.min(entry.stall_ns, entry.step_ns)]
                                         ]
                                     })),
            time, bound),
        caption).figure;
}
{
    const made = section(
        'The plan and what else was considered',
        plan ?
            'Each policy was replayed in virtual time over the recorded step; the fastest is ' +
            'used. Where links or computing have changed since, the best were replayed again; ' +
            'what is marked as earlier was not.' :
            'This report holds no plan: policies were not replayed, so there are no ' +
                'candidates to compare.');
    for (const phase of plan ? plan.phases : []) {
        made.append(element('h3', null, phase.name));
        const list = phase.candidates;
        for (const entry of list)
            entry.label = entry.policy + (entry.policy === phase.chosen ? ' (used)' : '') +
                (entry.earlier ? ' (earlier)' : '');
        const moved = (entry) => entry.nvme_read_bytes + entry.nvme_write_bytes +
            entry.host_to_device_bytes + entry.device_to_host_bytes;
        if (list.length > 0) {
            const now = list.filter((entry) => !entry.earlier);
            const earlier = list.filter((entry) => entry.earlier);
            if (now.length > 0)
                made.append(replayed(
                    `Replayed step time by policy, ${phase.name}`, now,
                    phase.bound ? '; the dashed line is the bound' : '',
                    phase.bound ? phase.bound.step_ns : 0));
            if (earlier.length > 0)
                made.append(replayed(
                    `Replayed earlier, ${phase.name}`, earlier,
                    ', for an earlier plan: with the links and the computing of then, so not to ' +
                        'be compared with those above',
                    0));
            made.append(
                legend([['compute', 'computing'], ['waiting', 'waiting']]),
                behind(table(
                    `Candidates, ${phase.name}`,
                    [
                        ['policy'], ['step', 'n'], ['waiting', 'n'], ['NVMe read', 'n'],
                        ['NVMe written', 'n'], ['host \u2192 device', 'n'],
                        ['device \u2192 host', 'n'], ['all bytes', 'n'], ['what it does', 'wide']
                    ],
                    list.map(
                        (entry) =>
                            [entry.label,
                             cellTime(entry.step_ns), cellTime(entry.stall_ns),
                             cellBytes(entry.nvme_read_bytes), cellBytes(entry.nvme_write_bytes),
                             cellBytes(entry.host_to_device_bytes),
                             cellBytes(entry.device_to_host_bytes), cellBytes(moved(entry)),
                             policyWords(entry.policy)]),
                    (i) => list[i].policy === phase.chosen)));
        }
        if (policyWords(phase.chosen) !== '')
            made.append(element(
                'p', null, `The policy that is used, ${phase.chosen}: `,
                policyWords(phase.chosen) + '. The table says what the others do.'));
        if (phase.bound) {
            const bound = phase.bound;
            const least = bound.now_ns || bound.step_ns;
            const computed = bound.now_compute_ns || bound.compute_ns;
            const words = element(
                'p', null, 'The bound of this instance is ', value(least, time(least)),
                '; compute alone needs ', value(computed, time(computed)), '.');
            if (Math.abs(computed - bound.compute_ns) > 0.01 * computed)
                words.append(
                    ' When this was planned, computing took ',
                    value(bound.compute_ns, time(bound.compute_ns)),
                    ' a step: the bars above are of that, and their bound is ',
                    value(bound.step_ns, time(bound.step_ns)), '.');
            made.append(
                words,
                behind(table(
                    `The bound, ${phase.name}`, [['link'], ['bytes', 'n'], ['time', 'n']],
                    phase.bound.links.map(
                        (link) =>
                            [linkWords(link.link), cellBytes(link.bytes), cellTime(link.ns)]))));
        }
        if (phase.predicted) {
            const turns = phase.predicted.turns || [];
            const steps = history ?
                history.steps.filter((step) => phaseWords(step.phase) === phase.name) :
                [];
            const last = steps[steps.length - 1];
            made.append(element(
                'p', null, 'It expects ',
                value(phase.predicted.step_ns, time(phase.predicted.step_ns)),
                turns.length > 1 ? ` for the ${turns.length} steps` : ' for a step',
                ...(last ? ['; the last one took ', value(last.wall_ns, time(last.wall_ns)), '.'] :
                           ['.'])));
        }
    }
}

// ---- memory, machine, errors -------------------------------------------------------------------
{
    const roles = run.waste.roles;
    const made = section('What blocks cost beyond their tensors', null);
    made.append(element(
        'p', null, 'Tensors are kept in blocks of ', value(run.block_bytes, bytes(run.block_bytes)),
        '; what does not fill them is charged and unused: ',
        value(run.waste.bytes, bytes(run.waste.bytes)), run.waste.share === null ? '.' : ', ',
        ...(run.waste.share === null ?
                [] :
                [value(run.waste.share, percent(run.waste.share)), ' of what is charged.'])));
    if (roles.length > 0) {
        made.append(
            chart(
                'Charged bytes by role',
                roles.map((role) => `${role.role}: ${bytes(role.charged_bytes)}`).join('; '),
                (picture, width) => sidewaysBars(
                    picture, width,
                    roles.map(
                        (role) => ({
                            name: role.role.replace('_', ' '),
                            parts: [
                                ['in', Math.min(role.tensor_bytes, role.charged_bytes)],
                                ['within', Math.max(0, role.charged_bytes - role.tensor_bytes)]
                            ]
                        })),
                    bytes),
                'Bytes in blocks, by role')
                .figure,
            legend([['in', 'tensors'], ['within', 'unused in their blocks']]),
            behind(table(
                'Roles', [['role'], ['tensors', 'n'], ['asked for', 'n'], ['charged', 'n']],
                roles.map(
                    (role) =>
                        [role.role.replace('_', ' '), cellCount(role.tensors),
                         cellBytes(role.tensor_bytes), cellBytes(role.charged_bytes)]))));
    }
}
{
    const made = section(
        'Drivers and what the machine refused them',
        'A remark says what is slower than it could be, and why.');
    made.append(table(
        'Drivers', [['used for'], ['driver'], ['kind'], ['bytes', 'n'], ['remark', 'wide']],
        run.drivers.map(
            (driver) =>
                [driver.used_for, driver.name, driver.kind, cellBytes(driver.bytes),
                 driver.remark || '\u2013'])));
}
if (run.errors.first.length > 0) {
    section(
        'Errors in the background', null,
        table(
            'Errors', [['tensor'], ['status', 'n'], ['times', 'n'], ['what happened', 'wide']],
            run.errors.first.map(
                (error) =>
                    [tensorWords(error.tensor), cellCount(error.status), cellCount(error.count),
                     error.sentence])));
}
document.getElementById('footer').append(
    'Made by stepwell report from what stw_report_write wrote, format ',
    value(run.format, String(run.format)),
    '. Times are of the monotonic clock, since the runtime was opened; KiB, MiB and GiB are ' +
    'powers of 1024. This page loads nothing and sends nothing.');
drawAll();
drawnWidth = document.body.clientWidth;
root.dataset.ready = '1';
