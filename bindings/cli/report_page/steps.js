// SPDX-License-Identifier: Apache-2.0
// The summary in words, the steps beside their bounds, and the gap to the bound.

// ---- head --------------------------------------------------------------------------------------
document.getElementById('name').textContent =
    run.runtime === '' ? 'A run without a name' : run.runtime;
document.getElementById('facts').append(
    'Stepwell ' + run.version + ', open for ', value(run.elapsed_ns, time(run.elapsed_ns)),
    ', blocks of ', value(run.block_bytes, bytes(run.block_bytes)), ', ',
    value(run.threads, count(run.threads)), ' update threads.');
const early = run.update ?? {early: 0, undone: 0};
if (early.early + early.undone > 0) {
    document.getElementById('facts').append(
        ' Before their verdict came ', value(early.early, count(early.early)),
        ' updates of parameters that stood, and ', value(early.undone, count(early.undone)),
        ' that were set back and made again.');
}

const phases = run.phases.filter((phase) => phase.steps > 0);
const stepsOf = (phase) =>
    history ? history.steps.filter((step) => step.phase === phase.number) : [];
// The median planned step: neither the first, which is learned, nor an outlier.
function typical(phase) {
    const steps = stepsOf(phase);
    const planned = steps.filter((step) => step.planned);
    const list = planned.length > 0 ? planned : steps;
    if (list.length > 0)
        return {
            step: median(list, (step) => step.wall_ns),
            of: list.length,
            planned: planned.length > 0
        };
    return {
        step: {
            ...phase.last,
            step: phase.steps,
            bound_by: phase.last_bound.by,
            compute_ns: phase.last_bound.compute_ns
        },
        of: 1,
        planned: phase.last.planned
    };
}
const gapOf = (step) => Math.max(0, step.wall_ns - step.bound_ns);
const largestStall = (stall) => CAUSES.reduce((a, b) => stall[b] > stall[a] ? b : a);

function summary(phase) {
    const {step, of, planned} = typical(phase);
    const gap = gapOf(step);
    const what = of > 1 ? `median of ${of} ${planned ? 'planned ' : ''}steps` : 'one step';
    const text = element('p', {class: 'summary', 'data-phase': phase.number});
    text.append(
        element('strong', null, phase.name === '' ? 'phase ' + phase.number : phase.name),
        ': a step took ', value(step.wall_ns, time(step.wall_ns)), ', ',
        value(
            step.bound_ns > 0 ? gap / step.bound_ns : 0,
            step.bound_ns > 0 ? percent(gap / step.bound_ns) : '0 %'),
        ' more than the ', value(step.bound_ns, time(step.bound_ns)), ' that ',
        step.bound_by === 'compute' ? 'its computing' : 'the link ' + linkWords(step.bound_by),
        ' needs for it at least');
    if (step.stall_ns.total === 0 || gap === 0) {
        text.append(', and nothing was lost to waiting');
    } else {
        const cause = largestStall(step.stall_ns);
        text.append(
            '; the program waited ', value(step.stall_ns.total, time(step.stall_ns.total)),
            ', most of it for ', CAUSE_WORDS[cause], ' (',
            value(step.stall_ns[cause], time(step.stall_ns[cause])), ')');
    }
    text.append(` (${what}).`);
    return text;
}
// Two bounds: of the bytes as they were moved, and of whatever else might have been moved.
const sameBounds = (step) => Math.abs(step.least_ns - step.bound_ns) <= 0.01 * step.bound_ns;
function otherSchedules(phase) {
    const {step} = typical(phase);
    const text = element('p', {class: 'least', 'data-phase': phase.number});
    const more = Math.max(0, step.wall_ns / step.least_ns - 1);
    text.append(
        'With the computing that this step had, no other order of transfers takes less than ',
        value(step.least_ns, time(step.least_ns)), '; this one took ',
        value(more, percent(more)), ' more.');
    if (sameBounds(step)) text.append(' That is the bound as well: what was moved was not too much.');
    return text;
}
const tile = (name, exact, words, note) => element(
    'div', null, element('dt', null, name),
    element('dd', null, value(exact, words), note ? element('small', null, note) : null));

const overview = section(
    'In one sentence',
    phases.length === 0 ?
        'No step has ended in this run: there is no time to compare with a bound. Totals are ' +
        'below.' :
        null);
for (const phase of phases) {
    overview.append(summary(phase));
    const moved = typical(phase).step;
    if (moved.least_ns > 0) overview.append(otherSchedules(phase));
    const links = moved.link_bytes;
    const read = links ? links.nvme_to_host + links.nvme_to_device : moved.bytes.nvme_read;
    const write = links ? links.host_to_nvme + links.device_to_nvme : moved.bytes.nvme_write;
    overview.append(element(
        'dl', {class: 'tiles'},
        tile(
            'Step', moved.wall_ns, time(moved.wall_ns),
            `number ${moved.step} of ${phase.steps}` +
                (phase.aborted ? `, ${phase.aborted} aborted` : '')),
        tile(
            'Bound', moved.bound_ns, time(moved.bound_ns),
            'set by ' + (moved.bound_by === 'compute' ? 'compute' : linkWords(moved.bound_by))),
        ...(moved.least_ns > 0 && !sameBounds(moved) ? [tile(
            'Lower bound', moved.least_ns, time(moved.least_ns),
            'if other bytes had been moved')] : []),
        tile(
            'Waiting', moved.stall_ns.total, time(moved.stall_ns.total), 'of all threads together'),
        tile('Read from NVMe', read, bytes(read), 'in that step'),
        tile('Written to NVMe', write, bytes(write), 'in that step')));
}
if (run.errors.total > 0)
    overview.append(element(
        'p', {class: 'alert'}, value(run.errors.total, count(run.errors.total)),
        ' errors in the background; they are listed at the end.'));

// ---- steps -------------------------------------------------------------------------------------
const STALL_KIND = {
    nvme: 'nvme',
    host_device: 'host_device',
    collective: 'collective',
    room: 'room',
    update: 'wait-update'
};
// Of several threads waits add up and may exceed the step: drawn to scale within it.
function stepParts(step) {
    const scale = step.stall_ns.total > step.wall_ns ? step.wall_ns / step.stall_ns.total : 1;
    const parts = [['compute', Math.max(0, step.wall_ns - step.stall_ns.total * scale)]];
    for (const cause of CAUSES) parts.push([STALL_KIND[cause], step.stall_ns[cause] * scale]);
    return parts;
}
// An upright chart over steps: bars of parts, and a mark at each.
function overSteps(picture, width, steps, parts, mark, words, base, height, highest) {
    const left = 62;
    const bottom = 34;
    const room = width - left - 6;
    const most = highest ||
        Math.max(
            1,
            ...steps.map(
                (step) => Math.max(sum(parts(step), (part) => part[1]), mark ? mark(step) : 0)));
    const y = (amount) => 8 + (height - 8) * (1 - amount / most);
    for (const at of ticks(most, base, 4)) {
        picture.append(
            shape('line', {x1: left, x2: width - 6, y1: y(at), y2: y(at), class: 'grid'}),
            label(left - 6, y(at) + 4, short(words(at)), 'end'));
    }
    const each = room / steps.length;
    const thick = Math.max(1, Math.min(48, each * 0.78));
    steps.forEach((step, i) => {
        const x = left + each * (i + 0.5) - thick / 2;
        let at = 0;
        const bar = shape(
            'g', null,
            shape(
                'title', null,
                `step ${step.step}: ` +
                    parts(step)
                        .filter((part) => part[1] > 0)
                        .map(([kind, amount]) => words(amount))
                        .join(' + ')));
        for (const [kind, amount] of parts(step)) {
            if (!(amount > 0)) continue;
            bar.append(shape('rect', {
                x,
                y: y(at + amount),
                width: thick,
                height: Math.max(0.5, y(at) - y(at + amount)),
                class: 'fill-' + kind
            }));
            at += amount;
        }
        picture.append(bar);
        if (mark)
            picture.append(shape('line', {
                x1: x - 2,
                x2: x + thick + 2,
                y1: y(mark(step)),
                y2: y(mark(step)),
                class: 'bound'
            }));
    });
    picture.append(shape('line', {x1: left, x2: width - 6, y1: height, y2: height, class: 'axis'}));
    const every = Math.ceil(steps.length / Math.max(2, Math.floor(room / 44)));
    steps.forEach((step, i) => {
        if (i % every === 0)
            picture.append(label(left + each * (i + 0.5), height + 15, String(step.step), 'mid'));
    });
    picture.append(label(left + room / 2, height + 31, 'step', 'mid'));
    return height + bottom + 4;
}
const phaseWords = (number) => {
    const phase = run.phases.find((entry) => entry.number === number);
    return phase && phase.name !== '' ? phase.name : 'phase ' + number;
};
const missing = history ?
    'The history of this report holds no step: the charts of steps and the timeline are left out.' :
    'This report was written without a history of steps, by an older library: the charts of ' +
    'steps, ' +
    'of bytes over time and of the timeline are left out.';

if (history && history.steps.length > 0) {
    const left = history.steps_total - history.steps.length;
    const made = section(
        'Each step beside its bound',
        'A bar is the time of one step: what the program computed, and what it waited for. ' +
            'The line across is the bound: these bytes take these links as long. Another schedule ' +
            'may move fewer; where a plan knows what has to move, the sentence above says so.');
    for (const phase of phases) {
        const steps = stepsOf(phase);
        if (steps.length === 0) continue;
        if (phases.length > 1) made.append(element('h3', null, phaseWords(phase.number)));
        made.append(
            chart(
                'Time of each step, ' + phaseWords(phase.number),
                `${steps.length} steps, split into compute and waits by cause; the bound is a mark.`,
                (picture, width) => overSteps(
                    picture, width, steps, stepParts, (step) => step.bound_ns, time, 1000, 220),
                phaseWords(phase.number) + ': time of each step, by what it went to')
                .figure);
    }
    const used = CAUSES.filter((cause) => history.steps.some((step) => step.stall_ns[cause] > 0));
    made.append(legend([
        ['compute', 'computing'],
        ...used.map((cause) => [STALL_KIND[cause], 'waiting for ' + CAUSE_WORDS[cause]]),
        ['bound', 'bound']
    ]));
    if (left > 0)
        made.append(element(
            'p', {class: 'note'}, value(left, count(left)),
            ' older steps are no longer in the report.'));
    made.append(behind(table(
        'Steps: times',
        [
            ['step'], ['phase'], ['planned'], ['time', 'n'], ['bound', 'n'], ['set by'],
            ['gap', 'n'], ['lower bound', 'n'], ['compute', 'n'],
            ...CAUSES.map((cause) => ['wait: ' + CAUSE_WORDS[cause], 'n'])
        ],
        history.steps.map(
            (step) =>
                [cellCount(step.step), phaseWords(step.phase), step.planned ? 'yes' : 'no',
                 cellTime(step.wall_ns), cellTime(step.bound_ns), linkWords(step.bound_by),
                 cellTime(gapOf(step)), step.least_ns > 0 ? cellTime(step.least_ns) : '',
                 cellTime(step.compute_ns),
                 ...CAUSES.map((cause) => cellTime(step.stall_ns[cause]))]))));
} else if (phases.length > 0) {
    section('Each step beside its bound', missing);
}

// ---- the gap -----------------------------------------------------------------------------------
const bandwidthOf = (link) =>
    sum(run.links.filter((entry) => entry.link === link), (entry) => entry.measured_bytes_per_s);
if (phases.length > 0) {
    const made = section(
        'The gap to the bound',
        'What each resource needs for the typical step if nothing else were in its way. The ' +
        'longest of them is the bound; the gap is what the step took beyond it.');
    for (const phase of phases) {
        const {step} = typical(phase);
        const rows = [['the step, measured', step.wall_ns, 'bound', null]];
        rows.push(['compute', step.compute_ns, 'compute', null]);
        for (const link of LINKS) {
            const moved = step.link_bytes ? step.link_bytes[link] : 0;
            const speed = bandwidthOf(link);
            if (moved > 0 && speed > 0 && link !== 'ranks')
                rows.push([
                    linkWords(link), moved / speed * 1e9, TOWARD.has(link) ? 'in' : 'out',
                    [moved, speed]
                ]);
        }
        if (phases.length > 1) made.append(element('h3', null, phaseWords(phase.number)));
        made.append(
            chart(
                'What the step needs of each resource, ' + phaseWords(phase.number),
                'Bars: time of the step, of compute and of each link; the dashed line is the ' +
                'bound.',
                (picture, width) => sidewaysBars(
                    picture, width, rows.map(([name, ns, kind]) => ({name, parts: [[kind, ns]]})),
                    time, step.bound_ns),
                phaseWords(phase.number) +
                    ': time that each resource needs; the dashed line is the bound')
                .figure);
        made.append(behind(table(
            'What the step needs, ' + phaseWords(phase.number),
            [['resource'], ['time', 'n'], ['bytes', 'n'], ['measured bandwidth', 'n']], [
                ...rows.map(
                    ([name, ns, , link]) =>
                        [name, cellTime(ns), link ? cellBytes(link[0]) : '',
                         link ? cellRate(link[1]) : '']),
                ['bound', cellTime(step.bound_ns), '', ''], ['gap', cellTime(gapOf(step)), '', '']
            ])));
    }
}
