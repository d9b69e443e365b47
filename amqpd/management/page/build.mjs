// Builds the page: `node build.mjs [FOLDER]`, dist beside this file unless another folder is named.
//
// src/main.tsx and what it imports later become a few modules with a hash of their content in their names, src/style.css
// one sheet, src/icon.svg a picture; index.html names them. Each file comes three times, as it is, .gz and .br.
// index.html is written last: the broker takes a build for whole when that changes.
// Fails when all script together is larger than SCRIPT_BYTES_MAX gzipped.
import { mkdir, readFile, readdir, rm, writeFile, rename } from "node:fs/promises";
import { createHash } from "node:crypto";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";
import { build } from "esbuild";

const SCRIPT_BYTES_MAX = 120 * 1024;
const here = dirname(fileURLToPath(import.meta.url));
const folder = resolve(process.argv[2] ?? join(here, "dist"));
const started = performance.now();

// Each page imports src/common.ts, which so becomes one file.
const common = {
  name: "common",
  setup({ onLoad }) {
    onLoad({ filter: /\/src\/(main|pages\/[^/]+)\.tsx$/ }, async ({ path }) => {
      const source = await readFile(path, "utf8");
      return { contents: `import "${path.endsWith("main.tsx") ? "./common" : "../common"}";\n${source}`, loader: "tsx" };
    });
  },
};

const built = await build({
  absWorkingDir: here,
  entryPoints: { main: "src/main.tsx", style: "src/style.css" },
  outdir: folder,
  write: false,
  bundle: true,
  splitting: true,
  format: "esm",
  target: ["es2022"],
  minify: true,
  legalComments: "none",
  jsx: "automatic",
  jsxImportSource: "preact",
  define: { "process.env.NODE_ENV": '"production"' },
  entryNames: "[name]-[hash]",
  chunkNames: "[name]-[hash]",
  metafile: true,
  plugins: [common],
  logLevel: "warning",
});

const files = new Map(built.outputFiles.map((file) => [file.path.slice(folder.length + 1), Buffer.from(file.contents)]));
const named = (stem, ending) => [...files.keys()].find((name) => name.startsWith(`${stem}-`) && name.endsWith(ending));
const icon = await readFile(join(here, "src/icon.svg"));
const iconName = `icon-${createHash("sha256").update(icon).digest("hex").slice(0, 8)}.svg`;
files.set(iconName, icon);

// What the start imports: fetched at once, and not one behind the other.
const [mainName, styleName] = [named("main", ".js"), named("style", ".css")];
const outputs = new Map(Object.entries(built.metafile.outputs).map(([path, output]) => [path.split("/").pop(), output]));
const needed = new Set();
follow(mainName);
function follow(name) {
  for (const { kind, path } of outputs.get(name).imports) {
    const imported = path.split("/").pop();
    if (kind !== "import-statement" || needed.has(imported)) continue;
    needed.add(imported);
    follow(imported);
  }
}
const preloads = [...needed].map((name) => `<link rel="modulepreload" href="/assets/${name}">`).join("\n");
const index = (await readFile(join(here, "src/index.html"), "utf8"))
  .replace("%STYLE%", `/assets/${styleName}`)
  .replace("%ICON%", `/assets/${iconName}`)
  .replace("%PRELOADS%", preloads)
  .replace("%MAIN%", `/assets/${mainName}`);

const brotli = (bytes) =>
  brotliCompressSync(bytes, { params: { [constants.BROTLI_PARAM_QUALITY]: 11, [constants.BROTLI_PARAM_SIZE_HINT]: bytes.length } });

await mkdir(folder, { recursive: true });
let scriptBytes = 0;
async function put(name, bytes) {
  const zipped = gzipSync(bytes, { level: 9 });
  if (name.endsWith(".js")) scriptBytes += zipped.length;
  await writeFile(join(folder, name), bytes);
  await writeFile(join(folder, `${name}.gz`), zipped);
  await writeFile(join(folder, `${name}.br`), brotli(bytes));
  return zipped.length;
}
const sizes = [];
for (const [name, bytes] of files) sizes.push([name, await put(name, bytes)]);
await put("index.new.html", Buffer.from(index));
for (const ending of [".gz", ".br", ""]) await rename(join(folder, `index.new.html${ending}`), join(folder, `index.html${ending}`));
for (const name of await readdir(folder)) {
  const plain = name.replace(/\.(gz|br)$/, "");
  if (plain !== "index.html" && !files.has(plain)) await rm(join(folder, name));
}
if (process.env.PAGE_SIZES) for (const [name, size] of sizes.sort((a, b) => b[1] - a[1])) console.log(`${size}\t${name}`);
console.log(
  `the page: ${files.size} files, ${(scriptBytes / 1024).toFixed(1)} KB of script gzipped of ${SCRIPT_BYTES_MAX / 1024}, ` +
    `in ${((performance.now() - started) / 1000).toFixed(1)} s`,
);
if (scriptBytes > SCRIPT_BYTES_MAX) {
  console.error("more script than the page may have");
  process.exit(1);
}
