// Builds the page into dist beside this file: `node build.mjs [FOLDER]`.
//
// esbuild makes a few modules, a style sheet and an icon with hashes in their names; index.html names them. Each file is
// written plain, as .gz and as .br. index.html is written last: the broker loads a new build when this file changes.
// The build fails if all scripts together are larger than SCRIPT_BYTES_MAX, gzipped.
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

// Each page imports src/common.ts, so that esbuild makes one file of it.
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
const findFile = (stem, ending) => [...files.keys()].find((name) => name.startsWith(`${stem}-`) && name.endsWith(ending));
const icon = await readFile(join(here, "src/icon.svg"));
const iconName = `icon-${createHash("sha256").update(icon).digest("hex").slice(0, 8)}.svg`;
files.set(iconName, icon);

// The modules that the start imports, for modulepreload: the browser fetches them in parallel.
const [mainName, styleName] = [findFile("main", ".js"), findFile("style", ".css")];
const outputs = new Map(Object.entries(built.metafile.outputs).map(([path, output]) => [path.split("/").pop(), output]));
const startModules = new Set();
addImports(mainName);
function addImports(name) {
  for (const { kind, path } of outputs.get(name).imports) {
    const imported = path.split("/").pop();
    if (kind !== "import-statement" || startModules.has(imported)) continue;
    startModules.add(imported);
    addImports(imported);
  }
}
const preloads = [...startModules].map((name) => `<link rel="modulepreload" href="/assets/${name}">`).join("\n");
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
  const gzipped = gzipSync(bytes, { level: 9 });
  if (name.endsWith(".js")) scriptBytes += gzipped.length;
  await writeFile(join(folder, name), bytes);
  await writeFile(join(folder, `${name}.gz`), gzipped);
  await writeFile(join(folder, `${name}.br`), brotli(bytes));
  return gzipped.length;
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
  console.error("the scripts are larger than allowed");
  process.exit(1);
}
