"""The report's style sheet: light and dark by the reader's preference, one column on a phone."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #faf9f7; --card: #ffffff; --line: #e6e3de; --text: #1d1c1a; --soft: #6b6862;
  --track: #eeebe6; --engagement: #3457d5; --satisfaction: #0b8f6a; --best: #1d1c1a;
  --heat: #3457d5; --warn: #a4490b;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #141416; --card: #1c1c1f; --line: #2e2e33; --text: #ecebe8; --soft: #9c9a95;
    --track: #2a2a2f; --engagement: #8aa2ff; --satisfaction: #4fcf9f; --best: #ecebe8;
    --heat: #8aa2ff; --warn: #f0a56a;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--text);
  font: 16px/1.5 Inter, ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto,
    "Helvetica Neue", Arial, sans-serif;
  font-feature-settings: "tnum" 1; -webkit-text-size-adjust: 100%;
}
main { max-width: 66rem; margin: 0 auto; padding: 3.5rem 1.5rem 4rem; }
h1 { margin: 0; font-size: 2.25rem; line-height: 1.15; font-weight: 650; letter-spacing: -.022em; }
h2 { margin: 3rem 0 .25rem; font-size: 1.2rem; font-weight: 620; letter-spacing: -.01em; }
h3 { margin: 0; font-size: .95rem; font-weight: 600; }
p { margin: 0; }
.eyebrow { margin-bottom: .6rem; color: var(--soft); font-size: .875rem; }
.lead { margin-top: .75rem; max-width: 44rem; color: var(--soft); }
.note { margin-bottom: 1rem; max-width: 44rem; color: var(--soft); font-size: .9rem; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 12px; }
.figures {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr));
  margin-top: 2rem; overflow: hidden; gap: 1px; background: var(--line);
}
.figures div { padding: 1.1rem 1.25rem; background: var(--card); }
.figures strong { display: block; font-size: 1.7rem; font-weight: 620; letter-spacing: -.02em; }
.figures span { color: var(--soft); font-size: .85rem; }
.group { margin-top: 1rem; padding: .35rem 1.25rem; }
.group.engagement { --hue: var(--engagement); }
.group.satisfaction { --hue: var(--satisfaction); }
.group header { display: flex; align-items: baseline; gap: .6rem; padding: .8rem 0 .5rem; }
.group header::before {
  content: ""; width: .6rem; height: .6rem; border-radius: 3px; background: var(--hue);
}
.group header span { margin-left: auto; color: var(--soft); font-size: .85rem; }
.task {
  display: grid; grid-template-columns: 9rem 4.5rem 5.5rem 1fr 15rem; gap: 0 1rem;
  align-items: center; padding: .7rem 0; border-top: 1px solid var(--line);
}
.task .name { font-weight: 560; overflow-wrap: anywhere; }
.task .metric, .task .facts { color: var(--soft); font-size: .85rem; }
.task .value { font-size: 1.15rem; font-weight: 600; text-align: right; }
.task .facts { text-align: right; line-height: 1.35; }
.task .facts span { white-space: nowrap; margin-left: .75rem; }
.task .none { grid-column: 3 / 5; color: var(--warn); font-size: .9rem; }
.bar { position: relative; height: .6rem; border-radius: .3rem; background: var(--track); }
.bar i { position: absolute; inset: 0 auto 0 0; border-radius: .3rem; background: var(--hue); }
.bar u {
  position: absolute; top: .15rem; bottom: .15rem; border-radius: 2px; background: var(--text);
  opacity: .45;
}
.bar b {
  position: absolute; top: -.3rem; bottom: -.3rem; width: 2px; margin-left: -1px;
  background: var(--best);
}
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(17rem, 1fr)); gap: 1rem; }
.chart { padding: 1rem 1.1rem .8rem; }
.chart svg { display: block; width: 100%; height: auto; margin-top: .5rem; }
svg text { fill: var(--soft); font-size: 11px; font-family: inherit; }
.grid-line { stroke: var(--line); }
.line { fill: none; stroke: var(--hue, var(--text)); stroke-width: 2;
  stroke-linejoin: round; stroke-linecap: round; }
.line.train { stroke: var(--soft); stroke-dasharray: 1 4; }
.line.validation { stroke: var(--hue, var(--text)); }
.dot { fill: var(--hue, var(--text)); }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.25rem; margin: 0 0 .9rem; }
.legend span { color: var(--soft); font-size: .85rem; display: inline-flex; align-items: center;
  gap: .45rem; }
.legend i { width: 1.3rem; border-top: 2px solid var(--text); }
.legend i.train { border-top: 2px dotted var(--soft); }
.legend i.span { height: .5rem; border: 0; background: var(--text); opacity: .45; }
.legend i.dot-mark { width: .8rem; height: .8rem; border: 0; border-radius: 50%;
  background: var(--text); }
.legend i.tick { width: 2px; height: .95rem; border: 0; background: var(--best); }
.scroll { overflow-x: auto; padding: 1.1rem 1.25rem;
  /* A shade at the right edge where there is more to scroll to; the cover moves with the table. */
  background: linear-gradient(to left, var(--card) 1rem, transparent) right / 2.5rem 100% local
      no-repeat,
    linear-gradient(to left, color-mix(in oklab, var(--text) 16%, transparent), transparent) right /
      .9rem 100% scroll no-repeat, var(--card); }
.scroll tbody th { position: sticky; left: -1.25rem; background: var(--card); }
table.heat { width: 100%; table-layout: fixed; border-collapse: separate; border-spacing: 3px;
  font-size: .85rem; }
table.heat th, table.heat td { border: 0; padding: 0 .15rem; text-align: center; }
table.heat thead th { font-size: .75rem; overflow-wrap: anywhere; vertical-align: bottom; }
table.heat .first { width: 6.5rem; }
table.heat .side { width: 3.6rem; }
table.heat tbody th { text-align: left; color: var(--text); padding-right: .6rem; }
table.heat .cell {
  height: 2.1rem; border-radius: 5px; font-size: .75rem;
  background: color-mix(in oklab, var(--heat) var(--w), var(--track));
}
table.heat .cell.strong { color: var(--card); }
table.heat .unused { background: transparent; border: 1px dashed var(--soft); }
table.heat .side { color: var(--soft); text-align: right; padding-left: .5rem; }
table { width: 100%; border-collapse: separate; border-spacing: 0; font-size: .9rem; }
th { color: var(--soft); font-weight: 500; text-align: right; padding: .3rem .6rem; }
td { text-align: right; padding: .5rem .6rem; border-top: 1px solid var(--line);
  white-space: nowrap; }
tbody th { color: var(--text); border-top: 1px solid var(--line); font-weight: 560;
  padding: .5rem .6rem; overflow-wrap: break-word; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
th:last-child, td:last-child { padding-right: 0; }
.card.scroll + .card.scroll, .group + .card.scroll { margin-top: 1rem; }
.hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
.range { display: block; color: var(--soft); font-size: .78rem; font-weight: 400; }
.soft { color: var(--soft); }
td b { font-weight: 560; }
.better { color: var(--satisfaction); }
.worse { color: var(--warn); }
.said { margin: 0 0 1rem; padding-left: 1.1rem; }
.said li { margin: .2rem 0; }
.sub { margin: 1.6rem 0 .6rem; }
.noticed { margin-top: 1rem; padding: 1.1rem 1.25rem .4rem; border-left: 4px solid var(--warn); }
.noticed h2 { margin: 0 0 .4rem; font-size: 1rem; }
.verdict { padding: 1rem 1.25rem .2rem; margin-bottom: 1rem; border-left: 4px solid var(--warn); }
.verdict.bless { border-left-color: var(--satisfaction); }
.verdict strong { display: block; margin-bottom: .4rem; font-size: 1.3rem; }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; margin-top: 1.5rem; font-size: .9rem; }
a { color: var(--engagement); text-decoration: none; }
a:hover, a:focus-visible { text-decoration: underline; }
.anchor { color: var(--soft); font-weight: 400; opacity: .5; }
section { scroll-margin-top: 1rem; }
.pair { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1.2fr); gap: 1rem;
  align-items: start; }
.ideal { stroke: var(--soft); stroke-dasharray: 4 4; }
.whisker { stroke: var(--hue, var(--text)); stroke-width: 1.5; opacity: .55; }
.dot.faint { opacity: .35; }
.soft-line { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 2 4; }
.dot.chosen { fill: var(--warn); }
.legend i.chosen { background: var(--warn); }
.of-0 { --c: #4269d0; } .of-1 { --c: #b8860b; } .of-2 { --c: #d6453d; } .of-3 { --c: #2f9c95; }
.of-4 { --c: #3a9a3e; } .of-5 { --c: #d9689c; } .of-6 { --c: #8a5fd0; } .of-7 { --c: #8b6b4a; }
.line[class*="of-"] { stroke: var(--c); stroke-width: 1.6; }
.line.dashed { stroke-dasharray: 5 4; }
.legend i[class*="of-"] { border-color: var(--c); }
.legend i.dashed { border-top-style: dashed; }
footer { margin-top: 3rem; color: var(--soft); font-size: .85rem; overflow-wrap: anywhere; }
footer dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.25rem; margin: 0; }
footer dd { margin: 0; color: var(--text); }
@media (max-width: 44rem) {
  main { padding: 2rem 1rem 3rem; }
  h1 { font-size: 1.75rem; }
  .figures { grid-template-columns: 1fr 1fr; }
  .group { padding: .25rem 1rem; }
  .group header { flex-wrap: wrap; }
  .group header span { margin-left: 1.2rem; width: 100%; }
  .task { grid-template-columns: 1fr auto auto; gap: .35rem .6rem; }
  .task .bar { grid-column: 1 / -1; }
  .task .none { grid-column: 1 / -1; }
  .task .facts { grid-column: 1 / -1; text-align: left; }
  .task .facts span { margin: 0 .75rem 0 0; }
  .scroll { padding: .9rem 1rem; }
  .scroll tbody th { left: -1rem; }
  .roomy tbody th { min-width: 7.5rem; }
  .heat.named thead th { writing-mode: vertical-rl; rotate: 180deg; text-align: left;
    white-space: nowrap; max-height: 9rem; overflow: hidden; text-overflow: ellipsis; }
  .pair { grid-template-columns: minmax(0, 1fr); }
  table.heat { border-spacing: 2px; font-size: .8rem; }
  table { font-size: .8rem; }
  th, td { padding-left: .25rem; padding-right: .25rem; }
}
@media print { .card { break-inside: avoid; } }
"""
