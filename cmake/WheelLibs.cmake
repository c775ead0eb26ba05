# Finds C++ libraries inside installed Python wheels without importing them.
function(ws_wheel_dir package out)
  execute_process(COMMAND "${Python_EXECUTABLE}" -c
    "import importlib.util as u, pathlib as p; s = u.find_spec('${package}'); print(p.Path(s.origin).parent if s else '')"
    OUTPUT_VARIABLE dir OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(${out} "${dir}" PARENT_SCOPE)
endfunction()

# Defines PyArrow::arrow and PyArrow::parquet if the pyarrow wheel is there.
function(ws_find_pyarrow)
  find_package(Python 3.11 COMPONENTS Interpreter)
  if(NOT Python_FOUND)
    return()
  endif()
  ws_wheel_dir(pyarrow dir)
  foreach(lib arrow parquet)
    file(GLOB so "${dir}/lib${lib}.so.*")
    list(LENGTH so n)
    if(n EQUAL 1)
      add_library(PyArrow::${lib} SHARED IMPORTED GLOBAL)
      set_target_properties(PyArrow::${lib} PROPERTIES IMPORTED_LOCATION "${so}" INTERFACE_INCLUDE_DIRECTORIES "${dir}/include")
    endif()
  endforeach()
endfunction()
