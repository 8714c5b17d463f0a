import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

/* Paths are relative, so that the page works wherever an application mounts the server. Nothing is inlined,
   because the policy of the server allows only files of its own. */
export default defineConfig({
  logLevel: "warn",
  plugins: [svelte()],
  base: "./",
  build: {
    outDir: process.env.KEEPSTATE_INSPECTOR_OUT ?? "../src/keepstate/inspector/static",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: false,
    reportCompressedSize: false,
    cssCodeSplit: false,
    rolldownOptions: { checks: { pluginTimings: false } },
  },
});
