// SPDX-License-Identifier: Apache-2.0
// Where the bytes went: between the tiers, over each link, and in each tier over time.

// ---- where the bytes went ----------------------------------------------------------------------
const tierTitle = (tier) => tier.tier +
    (tier.tier === 'device' && run.tiers.filter((other) => other.tier === 'device').length > 1 ?
         ' ' + tier.device :
         '');
{
    const totals = {};
    for (const link of run.links) {
        const entry = totals[link.link] || (totals[link.link] = {bytes: 0, transfers: 0});
        entry.bytes += link.bytes;
        entry.transfers += link.transfers;
    }
    const tierOf = (name) => run.tiers.filter((tier) => tier.tier === name);
    const levels = ['device', 'host', 'nvme'].filter((name) => tierOf(name).length > 0);
    const lanes =
        LINKS.filter((link) => totals[link] && totals[link].bytes > 0 && link !== 'ranks');
    const most = Math.max(1, ...lanes.map((link) => totals[link].bytes));
    const made = section(
        'Where the bytes went',
        'The tiers and what moved between them since the run began. An arrow is as thick as its ' +
        'bytes; blue goes toward the device, orange away from it.');
    made.append(
        chart(
            'Tiers and the bytes between them',
            lanes.map((link) => `${linkWords(link)}: ${bytes(totals[link].bytes)}`).join('; '),
            (picture, full) => {
                const width = Math.min(full, 720);
                const gap = 92;
                // Arrows past the host tier leave less than half of a narrow box to its words.
                const narrow = width < 560;
                const boxHeight = narrow ? 68 : 52;
                const top = (name) => levels.indexOf(name) * (boxHeight + gap) + 2;
                levels.forEach((name) => {
                    const list = tierOf(name);
                    const used = sum(list, (tier) => tier.used_bytes);
                    const budget = sum(list, (tier) => tier.budget_bytes);
                    const peak = 'peak ' + bytes(sum(list, (tier) => tier.peak_bytes));
                    picture.append(
                        shape('rect', {
                            x: 2,
                            y: top(name),
                            width: width - 4,
                            height: boxHeight,
                            rx: 6,
                            class: 'box'
                        }),
                        shape('rect', {
                            x: 2,
                            y: top(name) + boxHeight - 6,
                            width: Math.max(
                                0, (width - 4) * Math.min(1, budget > 0 ? used / budget : 0)),
                            height: 6,
                            class: 'fill-in'
                        }),
                        label(14, top(name) + 20, name, 'strong'),
                        label(
                            14, top(name) + 37,
                            `${bytes(used)} of ${bytes(budget)}` + (narrow ? '' : ', ' + peak)));
                    if (narrow) picture.append(label(14, top(name) + 53, peak));
                });
                // Left to right: between neighbours, in then out; past the host tier at the right
                // edge.
                const columns = {
                    nvme_to_host: 0.1,
                    host_to_nvme: 0.33,
                    host_to_device: 0.1,
                    device_to_host: 0.33,
                    nvme_to_device: 0.56,
                    device_to_nvme: 0.79
                };
                for (const link of lanes) {
                    const [from, to] = link.split('_to_');
                    if (levels.indexOf(from) < 0 || levels.indexOf(to) < 0) continue;
                    const x = width * columns[link];
                    const down = levels.indexOf(to) > levels.indexOf(from);
                    const y1 = down ? top(from) + boxHeight : top(from);
                    const y2 = down ? top(to) : top(to) + boxHeight;
                    const thick = 2 + 14 * totals[link].bytes / most;
                    const tip = down ? y2 - 9 : y2 + 9;
                    picture.append(shape(
                        'g', null,
                        shape('title', null, `${linkWords(link)}: ${bytes(totals[link].bytes)}`),
                        shape('rect', {
                            x: x - thick / 2,
                            y: Math.min(y1, tip),
                            width: thick,
                            height: Math.abs(tip - y1),
                            class: TOWARD.has(link) ? 'fill-in' : 'fill-out'
                        }),
                        shape('path', {
                            d: `M${x - thick / 2 - 5} ${tip}h${thick + 10}L${x} ${y2}z`,
                            class: TOWARD.has(link) ? 'fill-in' : 'fill-out'
                        })));
                    const past = Math.abs(levels.indexOf(to) - levels.indexOf(from)) > 1;
                    const middle = past ? top('host') + boxHeight + gap / 2 : (y1 + y2) / 2;
                    picture.append(
                        label(x + thick / 2 + 8, middle + 4, bytes(totals[link].bytes), 'strong'));
                }
                return levels.length * boxHeight + Math.max(0, levels.length - 1) * gap + 6;
            },
            'Bytes since the run began')
            .figure);
    made.append(element(
        'p', {class: 'note'},
        'The measured bandwidth is what plans are made with. A link that used more than 100 % of ' +
        'it while it was busy was faster than its plans expect.'));
    made.append(behind(
        table(
            'Links since the run began',
            [
                ['link'], ['device', 'n'], ['bytes', 'n'], ['transfers', 'n'], ['busy', 'n'],
                ['of the run', 'n'], ['measured bandwidth', 'n'], ['used of it while busy', 'n'],
                ['errors', 'n'], ['retries', 'n']
            ],
            run.links.map(
                (link) =>
                    [linkWords(link.link), cellCount(link.device), cellBytes(link.bytes),
                     cellCount(link.transfers), cellTime(link.busy_ns),
                     link.busy_share === null ?
                         '' :
                         {value: link.busy_share, text: percent(link.busy_share)},
                     cellRate(link.measured_bytes_per_s),
                     link.utilisation === null ?
                         '' :
                         {value: link.utilisation, text: percent(link.utilisation)},
                     cellCount(link.errors), cellCount(link.retries)])),
        table(
            'Tiers at the end',
            [
                ['tier'], ['device', 'n'], ['budget', 'n'], ['used', 'n'], ['peak', 'n'],
                ['within budget'], ['dirty', 'n'], ['staging', 'n'], ['scratch', 'n'],
                ['evictions', 'n']
            ],
            run.tiers.map(
                (tier) =>
                    [tier.tier, cellCount(tier.device), cellBytes(tier.budget_bytes),
                     cellBytes(tier.used_bytes), cellBytes(tier.peak_bytes),
                     tier.within_budget ? 'yes' : 'NO', cellBytes(tier.dirty_bytes),
                     cellBytes(tier.staging_bytes), cellBytes(tier.scratch_bytes),
                     cellCount(tier.evictions)]))));

    if (history && history.steps.length > 0) {
        const moved =
            LINKS.filter((link) => history.steps.some((step) => step.link_bytes[link] > 0));
        const links = section(
            'Bytes over each link, step by step',
            'The same scale for all links: what is low here is low.');
        for (const phase of phases) {
            const steps = stepsOf(phase);
            if (steps.length === 0 || moved.length === 0) continue;
            if (phases.length > 1) links.append(element('h3', null, phaseWords(phase.number)));
            const highest = Math.max(
                ...steps.map((step) => Math.max(...moved.map((link) => step.link_bytes[link]))));
            const grid = element('div', {class: 'small-multiples'});
            links.append(grid);
            for (const link of moved) {
                grid.append(
                    chart(
                        `${linkWords(link)}, bytes of each step`,
                        `${steps.length} steps; at most ${
                            bytes(Math.max(...steps.map((step) => step.link_bytes[link])))}.`,
                        (picture, width) => overSteps(
                            picture, width, steps,
                            (step) => [[linkKind(link), step.link_bytes[link]]],
                            null, bytes, 1024, 96, highest),
                        linkWords(link) + ': bytes of each step')
                        .figure);
            }
        }
        links.append(behind(table(
            'Steps: bytes by link',
            [['step'], ['phase'], ...moved.map((link) => [linkWords(link), 'n'])],
            history.steps.map(
                (step) =>
                    [cellCount(step.step), phaseWords(step.phase),
                     ...moved.map((link) => cellBytes(step.link_bytes[link]))]))));
    }
}

// ---- tiers over time ---------------------------------------------------------------------------
if (history && history.tiers.some((tier) => tier.samples.length > 1)) {
    const made = section(
        'Bytes in each tier over time',
        'What each tier held, sampled while something moved, against its budget. The peak ' +
        'between two samples is in the table of tiers above.');
    const grid = element('div', {class: 'small-multiples'});
    made.append(grid);
    const rows = [];
    for (const tier of history.tiers) {
        const whole =
            run.tiers.find((entry) => entry.tier === tier.tier && entry.device === tier.device);
        if (!whole || tier.samples.length < 2) continue;
        const begin = tier.samples[0][0];
        const end = tier.samples[tier.samples.length - 1][0];
        const most = Math.max(whole.budget_bytes, ...tier.samples.map((sample) => sample[1]), 1);
        const peak = Math.max(...tier.samples.map((sample) => sample[1]));
        rows.push([
            tierTitle(whole), cellBytes(whole.budget_bytes), cellCount(tier.samples.length),
            cellTime(begin), cellTime(end),
            cellBytes(Math.min(...tier.samples.map((sample) => sample[1]))), cellBytes(peak),
            cellBytes(tier.samples[tier.samples.length - 1][1])
        ]);
        grid.append(
            chart(
                `Bytes in the ${tierTitle(whole)} tier`,
                `From ${time(begin)} to ${time(end)}; budget ${
                    bytes(whole.budget_bytes)}, highest sample ${bytes(peak)}.`,
                (picture, width) => {
                    const left = 62;
                    const height = 140;
                    const x = (ns) => left +
                        (width - left - 8) * (end > begin ? (ns - begin) / (end - begin) : 0);
                    const y = (amount) => 10 + (height - 10) * (1 - amount / most);
                    for (const at of ticks(most, 1024, 4))
                        picture.append(
                            shape(
                                'line',
                                {x1: left, x2: width - 8, y1: y(at), y2: y(at), class: 'grid'}),
                            label(left - 6, y(at) + 4, short(bytes(at)), 'end'));
                    // A level holds until the next sample.
                    let d = `M${x(begin).toFixed(1)} ${y(tier.samples[0][1]).toFixed(1)}`;
                    for (const [ns, amount] of tier.samples)
                        d += `H${x(ns).toFixed(1)}V${y(amount).toFixed(1)}`;
                    picture.append(
                        shape('path', {d: d + `V${height}H${left}z`, class: 'area'}),
                        shape('path', {d, class: 'curve'}));
                    const budget = y(whole.budget_bytes);
                    picture.append(
                        shape(
                            'line',
                            {x1: left, x2: width - 8, y1: budget, y2: budget, class: 'budget'}),
                        shape(
                            'line',
                            {x1: left, x2: width - 8, y1: height, y2: height, class: 'axis'}));
                    for (const at of ticks(end - begin, 1000, Math.max(2, Math.floor(width / 120))))
                        picture.append(label(
                            Math.min(x(begin + at), width - 16), height + 15, short(time(at)),
                            'mid'));
                    return height + 22;
                },
                tierTitle(whole) +
                        ': bytes held, and the budget (dashed), over time since the first sample')
                .figure);
    }
    made.append(behind(table(
        'Samples of the tiers',
        [
            ['tier'], ['budget', 'n'], ['samples', 'n'], ['first at', 'n'], ['last at', 'n'],
            ['lowest', 'n'], ['highest', 'n'], ['last', 'n']
        ],
        rows)));
}
